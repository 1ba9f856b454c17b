"""Attention's products as machine code for this machine: see `attention_code`."""

import functools
import math

import numpy as np

from specserve.backends.cpu.codegen.attention_code import Shape, code
from specserve.backends.cpu.codegen.softmax_code import LANES
from specserve.backends.cpu.machine_code import Functions, host_machine


class AttentionKernels:
    """For heads of one size and tiles of some keys."""

    def __init__(self, shape: Shape) -> None:
        """Compiles them, in about a tenth of a second. Raises RuntimeError, which is LLVM's."""
        self._code = Functions(code(shape))
        self.most_rows = shape.most_rows
        self.soften = self._code.address("soften")
        self.keep_key, self.keep_value = map(self._code.address, ("keep_key", "keep_value"))
        self.by_size = np.array(  # int64 [2, n]: `score_<n>` and `weigh_<n>`
            [
                [self._code.address(f"{name}_{size}") for size in range(1, shape.most_rows + 1)]
                for name in ("score", "weigh")
            ]
        )


@functools.cache
def attention_kernels(head_dim: int, tile: int, num_bytes: int) -> AttentionKernels:
    """`num_bytes`: of a number that is kept, see `Shape`."""
    machine = host_machine()
    assert machine is not None, "who wants these has products, which need one"
    # A vector of sums is two registers where vectors are half as wide.
    columns = math.gcd(head_dim, LANES)
    return AttentionKernels(Shape(head_dim, tile, columns, machine.most_rows, num_bytes))
