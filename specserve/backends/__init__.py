"""Ways of computing: compiled for a CPU, captured for CUDA. The definitions are not here."""
