# pyright: strict
"""`python -m bench.configurations`: services with flags given by hand, against each other."""
