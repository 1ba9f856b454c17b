"""Frames of a link over torch.distributed, point to point: NCCL between GPUs, gloo for its tests.

`lanes` says what a way between two processes must offer, `gloo` and `nccl` are two of them;
`transit` puts frames on one, `attachment` makes and ends it in a thread, `ends` fits it below
the link. It is apart from that package because light processes import that one, and torch
is for ranks alone. Knows neither node, nor what a frame says.
"""
