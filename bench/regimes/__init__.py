"""`python -m bench.regimes`: plain, synchronous and asynchronous decoding against each other."""
