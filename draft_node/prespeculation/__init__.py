"""What a draft process prepares while the target verifies: likely outcomes, a block for each."""
