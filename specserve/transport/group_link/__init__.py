"""Frames of a link over torch.distributed, point to point: NCCL between GPUs.

`lanes` says what a way between two processes must offer, `nccl` is one (tests have another, gloo);
`transit` puts frames on one, `attachment` makes and ends it in a thread, `ends` fits it below
the link. It is apart from that package because light processes import that one, and torch
is for ranks alone. Knows neither node, nor what a frame says.
"""
