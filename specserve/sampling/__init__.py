"""Logits to tokens: the one definition of sampling in this service, as pure functions of rows."""
