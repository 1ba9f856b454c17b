"""Losslessness, asked of running services: what a client can see of it, and how sure it can be."""
