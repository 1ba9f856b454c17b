"""Checkpoints that were made to harm whoever loads them."""
