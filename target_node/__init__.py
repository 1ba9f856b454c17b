"""The target node: continuous batching, paged KV, sampling. One process per target rank."""
