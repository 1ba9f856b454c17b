"""Frames of a link over torch.distributed, point to point: NCCL between GPUs.

`lanes` says what a way between two processes must offer, `nccl` is one (tests have another, gloo);
`transit` puts frames on one, `attachment` makes and ends it in a thread, `ends` fits it below
the link. Apart from `specserve.transport.link`, which light processes import: torch is for ranks.
Knows neither node, nor what a frame says.
"""
