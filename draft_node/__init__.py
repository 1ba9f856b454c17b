"""The draft node: predicts what the target will say next, and trains the models that do so."""
