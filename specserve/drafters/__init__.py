"""Drafters: from a verified context and an anchor to a block of likely next tokens."""
