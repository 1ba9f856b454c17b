"""The round exchange between the target leader and a draft process: small fixed-layout tensors.

`messages` says what travels, `frames` how it is laid out, `ring` how it gets there
(`specserve.transport.group_link` is another way). Knows neither node.
"""
