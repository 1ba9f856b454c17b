"""Verification: which drafted tokens stand, and what follows them, exactly in the target's
distribution.
"""
