"""What functions that numba compiles are made of: calls of machine code by address, and e**x.

`exp32` is plain Python: who calls it compiles it with flags of its own, strict where bits are
promised.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from specserve.backends.cpu import compiled


def _intrinsic(function: Callable[..., Any]) -> Any:  # noqa: ANN401 - its typing arguments go
    """As a decorator, of functions that tell numba what code to make of a call."""
    return function if compiled.numba is None else compiled.numba.extending.intrinsic(function)


@_intrinsic
def call(_typing: Any, _function: int, words: Any) -> Any:  # noqa: ANN401
    """call(address, words of 64 bits), of a function that returns nothing."""
    from llvmlite import ir

    types, word = compiled.numba.types, ir.IntType(64)
    kind = ir.FunctionType(ir.VoidType(), [word] * len(words))

    def code(context: Any, builder: Any, _signature: Any, given: Any) -> Any:  # noqa: ANN401
        unpacked = compiled.numba.core.cgutils.unpack_tuple(builder, given[1])
        builder.call(builder.inttoptr(given[0], kind.as_pointer()), unpacked)
        return context.get_dummy_value()

    return types.none(types.int64, types.UniTuple(types.int64, len(words))), code


@_intrinsic
def pointer(_typing: Any, _address: int) -> Any:  # noqa: ANN401
    """An address as what `numba.carray` takes."""
    types = compiled.numba.types

    def code(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:  # noqa: ANN401
        from llvmlite import ir

        return builder.inttoptr(given[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), code


_LOG2_E = np.float32(1.44269504)
_LEAST_EXPONENT, _MOST_EXPONENT, _BIAS = np.float32(-126.0), np.float32(127.0), np.int32(127)
_MANTISSA_BITS = np.int32(23)


def exp32(x: np.float32) -> np.float32:
    """e**x to the last few bits; 1e-38 to 2e38."""
    scaled = x * _LOG2_E
    if scaled < _LEAST_EXPONENT:  # false for NaN, which is to stay one
        scaled = _LEAST_EXPONENT
    if scaled > _MOST_EXPONENT:
        scaled = _MOST_EXPONENT
    whole = np.floor(scaled + np.float32(0.5))
    part = scaled - whole  # -.5 to .5, and 2**part by its series
    power = np.float32(1.5403530e-4)
    power = power * part + np.float32(1.3333558e-3)
    power = power * part + np.float32(9.6181291e-3)
    power = power * part + np.float32(5.5504109e-2)
    power = power * part + np.float32(2.4022651e-1)
    power = power * part + np.float32(6.9314718e-1)
    power = power * part + np.float32(1.0)
    bits = np.int32((np.int32(whole) + _BIAS) << _MANTISSA_BITS)
    return power * bits.view(np.float32)
