"""Target models: configuration, checkpoints, forward pass, tensor parallelism, paged attention."""
