"""Functions compiled by numba, where it is installed and works: an optional extra.

numba keeps what it has compiled of a function until that function's own file changes, or what it
encloses. So whatever a compiled function calls or reads has to be in its file, or it encloses the
key of the files that it is made of (`compiled_sources`).
"""

import fcntl
import logging
import threading
import time
from collections.abc import Callable, Collection, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

numba: Any = None
WHY_NOT = ""
try:
    import numba
except Exception as error:  # noqa: BLE001 - numba refuses versions of numpy by what it raises
    WHY_NOT = str(error)

_Function = TypeVar("_Function", bound=Callable[..., Any])
_LOG = logging.getLogger(__name__)
_LONG_S = 3.0  # to find what was kept takes less
_KEPT = "kept for later starts"
_NOT_KEPT = "for this start alone: it can be kept nowhere (NUMBA_CACHE_DIR names a folder)"
_MADE: list[Any] = []  # which owns what addresses are given of


def compiled(
    function: _Function, arithmetic: Collection[str] = (), *, is_kept: bool = True
) -> _Function:
    """As a decorator; kept beside the function's file, or in the user's cache.

    `arithmetic`: LLVM's fast-math flags. `is_kept` is for functions that are called as they are;
    those that are part of others are kept with them. Without numba a function stays what it is,
    which is far too slow to use.
    """
    if numba is None:
        return function
    options = {"fastmath": set(arithmetic), "error_model": "numpy", "boundscheck": False}
    if not is_kept:
        return cast(_Function, numba.njit(function, **options))
    try:
        return cast(_Function, numba.njit(function, cache=True, **options))
    except RuntimeError:  # nowhere to keep it
        return cast(_Function, numba.njit(function, **options))


def shared(function: _Function) -> _Function:
    """As a decorator: a function of Python that compiled ones may call, too."""
    return (
        function if numba is None else cast(_Function, numba.extending.register_jitable(function))
    )


def address_of(function: Callable[..., None], signature: str) -> int:
    """Of machine code that C may call; see `compiled`. What the function raises is lost.

    Of processes that want it at once, ranks for one, the first compiles and the others find it.
    """
    is_kept = True
    with _turn(function.__code__.co_filename), _announced():
        began_s = time.monotonic()
        try:
            made = numba.cfunc(signature, cache=True, error_model="numpy")(function)
        except Exception:  # noqa: BLE001 - nowhere to keep it, or what was kept is damaged
            made, is_kept = numba.cfunc(signature, error_model="numpy")(function), False
    if (took_s := time.monotonic() - began_s) > _LONG_S:
        _LOG.info("compiled in %.0f s, %s", took_s, _KEPT if is_kept else _NOT_KEPT)
    _MADE.append(made)
    return made.address


@contextmanager
def _announced() -> Generator[None]:
    """Somebody who waits for longer than it takes to find what was kept is told for what."""
    text = (
        "compiling the model's forward for this processor: about a minute, at the first start on "
        "this machine alone"
    )
    announcement = threading.Timer(_LONG_S, _LOG.info, (text,))
    announcement.start()
    try:
        yield
    finally:
        announcement.cancel()
        announcement.join()  # whoever calls may fork next


@contextmanager
def _turn(path: str) -> Generator[None]:
    """One process of this machine at a time, where the file can be locked."""
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context(Path(path).open("rb"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def works(what: str, example: Callable[..., Any], run_all: Callable[[], None]) -> bool:
    """Whether `run_all`, which calls each of some functions once, does; it compiles them.

    `example` is one of them; `what` they are, for the log.
    """
    if numba is None:
        hint = "pip install 'specserve[cpu]' brings it"
        _LOG.info("%s without numba, which is slower: %s; %s", what, WHY_NOT, hint)
        return False
    if not hasattr(example, "signatures"):  # NUMBA_DISABLE_JIT
        return False
    try:
        run_all()
    except Exception as error:  # noqa: BLE001 - a damaged cache may raise anything
        _LOG.warning("%s without compiled kernels: %s: %s", what, type(error).__name__, error)
        return False
    return True
