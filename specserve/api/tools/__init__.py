"""Tool calls: what a request may call, calls in a model's text, and grammars that force them."""
