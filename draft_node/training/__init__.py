"""Training of the embedded target and of standalone drafts; knows nothing about serving."""
