"""Machine code of products and attention, printed in LLVM's language. It is not extended."""
