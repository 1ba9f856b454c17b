"""What training does on one kind of device and not on another."""

import torch


def fast_bfloat16(device: torch.device | str) -> bool:
    """Whether bfloat16 products are native: on GPUs, and on CPUs with AVX-512 or AMX units."""
    if torch.device(device).type == "cuda":
        return True
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def is_cpu(device: torch.device | str) -> bool:
    """Where memory is the system's, and bfloat16 and fused attention may be slow."""
    return str(device).partition(":")[0] == "cpu"
