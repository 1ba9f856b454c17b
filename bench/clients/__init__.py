"""Clients that others have written, unchanged, on a running service; what they printed is kept."""
