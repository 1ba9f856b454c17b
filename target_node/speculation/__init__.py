"""Where the target gets drafted tokens from: nowhere, a drafter beside it, draft processes."""
