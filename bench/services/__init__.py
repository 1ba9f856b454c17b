# pyright: strict
"""Real services that benches start, ask over gRPC in turn, and compare."""
