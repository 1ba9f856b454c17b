"""Compile flashinfer's kernels for the models that will be served, on a machine without a GPU.

python -m bench.gpu.flash_kernels --heads 9:3:64 32:8:128 --dtypes bfloat16 float16
python -m bench.gpu.flash_kernels --heads 32:8:128 --list

`--heads`: query heads, key heads and their size, one for each model. All is compiled that attention
of them asks for, and nothing else: prefill and verification (and decoding on tensor cores) as one
module, decoding of up to three queries a key, and merging; then norms and rotations of layers, of
all sizes. Needs nvcc (CUDA_HOME), ninja and FLASHINFER_CUDA_ARCH_LIST, which is 9.0a for an H100 or
H200. The modules lie in ~/.cache/flashinfer (FLASHINFER_WORKSPACE_BASE names another folder than
the home), which may be copied to a machine of the same CUDA and flashinfer.
"""

import argparse
import sys
import time
from collections.abc import Sequence

import torch

from bench.writing import show_failure
from specserve.backends.cuda import flash
from specserve.backends.cuda.flash import (
    DTYPES,
    HEAD_DIMS,
    Heads,
    Module,
    modules_of,
    modules_of_layers,
)

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


def heads_from(text: str) -> tuple[int, int, int]:
    """Query heads, key heads and size of `9:3:64`. ArgumentTypeError where they are not such."""
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isdigit() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text} is not QUERY_HEADS:KEY_HEADS:SIZE, as 32:8:128")
    num_heads, num_kv_heads, head_dim = map(int, parts)
    if num_heads % num_kv_heads:
        raise argparse.ArgumentTypeError(f"{text}: {num_heads} is no multiple of {num_kv_heads}")
    if head_dim not in HEAD_DIMS:
        sizes = ", ".join(map(str, HEAD_DIMS))
        raise argparse.ArgumentTypeError(f"{text}: heads of {head_dim}; there are {sizes}")
    return num_heads, num_kv_heads, head_dim


def modules(
    all_heads: Sequence[tuple[int, int, int]], dtypes: Sequence[torch.dtype]
) -> list[Module]:
    """Of all of them, each once."""
    wanted = (Heads(*heads, 16, dtype, 1.0) for heads in all_heads for dtype in dtypes)
    found = [each for heads in wanted for each in modules_of(heads)] + modules_of_layers()
    return list({each.name: each for each in found}.values())


def main(words: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").split("\n", 1)[0]
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.flash_kernels", description=summary)
    parser.add_argument("--heads", nargs="+", type=heads_from, required=True, metavar="Q:KV:SIZE")
    parser.add_argument("--dtypes", nargs="+", choices=_DTYPES, default=["bfloat16"])
    parser.add_argument("--list", action="store_true", help="say what would be compiled")
    given = parser.parse_args(words)
    if flash.flashinfer is None:
        show_failure("flash_kernels", ModuleNotFoundError("pip install 'specserve[gpu]' first"))
        return 2
    for module in modules(given.heads, [_DTYPES[name] for name in given.dtypes]):
        began_s, state = time.monotonic(), "compiled" if module.is_compiled else "to be compiled"
        if not given.list:
            try:
                module.build(verbose=False)
            except (OSError, RuntimeError) as error:
                show_failure(module.name, error)
                return 1
            state = f"compiled in {time.monotonic() - began_s:.0f} s"
        sys.stdout.write(f"{module.name}: {state}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
