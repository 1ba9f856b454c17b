"""The same model file and prompts through specserve and through other engines, side by side."""
