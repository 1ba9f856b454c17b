"""Frames of a link over torch.distributed, point to point: NCCL between GPUs.

What the host reads of a frame goes through shared memory, what only a device reads from its memory
to the peer's. `lanes` says what a way between two devices must offer, `nccl` is one (tests have
another, gloo); `device_part` is what travels on it, `transit` puts it there and announces it,
`attachment` makes and ends the way in a thread, `ends` fits it below the link. Apart from
`specserve.transport.link`, which light processes import: torch is for ranks.
Knows neither node, nor what a frame says.
"""
