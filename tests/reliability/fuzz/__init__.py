"""Mutated frames on every port and socket of a real `1+1`, while seeded requests run on it.

    python -m tests.reliability.fuzz --frames 100000

sends that many to each, prints one JSON object and exits with 1 if anything was hurt.
"""
