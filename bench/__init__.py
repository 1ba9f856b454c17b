"""Measurements of what is served. Imports the product; nothing of the product imports this."""
