"""What decides how much is verified, and which way of speculation is fastest."""
