"""Calls of machine code by its address, from functions that numba compiles."""

from collections.abc import Callable
from typing import Any

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
