"""What is particular to CUDA devices."""
