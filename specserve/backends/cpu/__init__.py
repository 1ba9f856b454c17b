"""Machine code for a CPU, and what compiles it."""
