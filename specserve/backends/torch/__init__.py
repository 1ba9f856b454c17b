"""The reference: every operation by torch's own, on any device."""
