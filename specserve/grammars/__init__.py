"""Grammars of structured output: compiling them within limits, and the places of texts in them."""
