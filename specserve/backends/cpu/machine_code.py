"""Machine code from LLVM's language, for this machine, and calls of it by the threads torch has."""

import ctypes
import functools
import logging
import os
from typing import Any

from specserve.backends.cpu.codegen.row_code import ByteProducts, Machine
from specserve.backends.cpu.codegen.team_barrier import TEAM_BARRIER

llvm: Any = None
WHY_NOT = ""
try:
    import llvmlite.binding as llvm
except Exception as error:  # noqa: BLE001 - a broken installation may raise anything
    WHY_NOT = str(error)

_LOG = logging.getLogger(__name__)


@functools.cache
def host_machine() -> Machine | None:
    """None where code for it would be no faster than torch's, or cannot be made."""
    if llvm is None:
        _LOG.info("matrix products are not compiled, which is slower: %s", WHY_NOT)
        return None
    try:
        features = llvm.get_host_cpu_features()
    except RuntimeError as error:
        _LOG.warning("matrix products are not compiled: %s", error)
        return None
    has_halves = bool(features.get("f16c"))
    if features.get("avx512f"):
        return Machine(
            lanes=16,
            most_rows=12,
            has_halves=has_halves,
            has_dots=bool(features.get("avx512bf16")),
            byte_products=ByteProducts.QUADS if features.get("avx512vnni") else None,
        )
    if features.get("avx2") and features.get("fma"):
        return Machine(
            lanes=8, most_rows=6, has_halves=has_halves, byte_products=ByteProducts.PAIRS
        )
    return None


class Functions:
    """Of one text; they live as long as this."""

    def __init__(self, code: str) -> None:
        """Raises RuntimeError, which is LLVM's."""
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = llvm.parse_assembly(code)
        module.verify()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
        )
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        return self._engine.get_function_address(name)


class Team:
    """The threads that torch has: OpenMP's, and GNU's."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name in ("omp_get_thread_num", "omp_get_num_threads"):
            llvm.add_symbol(name, _address(library, name))
        llvm.add_symbol("syscall", _address(ctypes.CDLL(None), "syscall"))
        self._waiting = Functions(TEAM_BARRIER)
        self.barrier = self._waiting.address("wait")  # what each of a team waits by
        self._functions = Functions(_JOIN)
        self._join = self._functions.address("join")
        self._start = library.GOMP_parallel
        self._start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._start.restype = None

    @staticmethod
    @functools.cache
    def of_torch() -> "Team | None":
        """None if its threads are of another kind."""
        try:  # what is loaded already: another library would be a second set of threads
            return Team(ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD))
        except (OSError, AttributeError):
            _LOG.info("matrix products are not compiled: torch has threads of another kind")
        except RuntimeError as error:
            _LOG.warning("matrix products are not compiled: %s", error)
        return None

    def run(self, record: int, num_threads: int) -> None:
        """Each calls (record, its number, the number of all) of the address at the record's start.

        Threads of a team that is smaller than asked for know that from the last.
        """
        self._start(self._join, record, num_threads, 0)


def _address(library: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None, name
    return address


_JOIN = """
    declare i32 @omp_get_thread_num()
    declare i32 @omp_get_num_threads()
    define void @join(ptr %record) {
        %function = load ptr, ptr %record
        %own = call i32 @omp_get_thread_num()
        %all = call i32 @omp_get_num_threads()
        %me = zext i32 %own to i64
        %team = zext i32 %all to i64
        call void %function(ptr %record, i64 %me, i64 %team)
        ret void
    }
"""
