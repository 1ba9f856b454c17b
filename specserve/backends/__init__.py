"""Ways of computing: compiled for a CPU, recorded for CUDA. The definitions are not here."""
