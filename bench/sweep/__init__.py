# pyright: strict
"""`python -m bench.sweep`: what the service gains at every load, by mode, policy and topology."""
