"""`python -m bench.sync_speed`: synchronous speculation against plain decoding on one core."""
