"""The control plane: messages between the API, the target leader and its draft processes."""
