"""What is kept of compiled functions is found again, and never for something else."""

import ctypes
import logging

import numpy as np
import pytest

from specserve.backends.cpu import compiled

pytestmark = pytest.mark.skipif(compiled.numba is None, reason="no numba")


def teller(number):
    """As `forward_record` encloses what its function is made of."""

    def tell(place, first, second):
        compiled_place = compiled_carray(place, 1, np.int64)
        compiled_place[0] = 1000 * number + 10 * first + second

    return tell


compiled_carray = None if compiled.numba is None else compiled.numba.carray


def told(number):
    address = compiled.address_of(teller(number), "void(voidptr, int64, int64)")
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    found = np.zeros(1, np.int64)
    kind(address)(found.ctypes.data, 2, 3)
    return int(found[0])


def kept_files(folder):
    return sorted(path.name for path in folder.rglob("*.nbc"))


def test_what_a_function_encloses_is_part_of_the_key(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled.numba.core.config, "CACHE_DIR", str(tmp_path))
    assert told(1) == 1023
    once = kept_files(tmp_path)
    assert len(once) == 1
    assert told(2) == 2023
    twice = kept_files(tmp_path)
    assert len(twice) == 2
    assert (told(1), told(2)) == (1023, 2023)
    assert kept_files(tmp_path) == twice


def test_what_is_damaged_is_compiled_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled.numba.core.config, "CACHE_DIR", str(tmp_path))
    assert told(3) == 3023
    [kept] = tmp_path.rglob("*.nbc")
    kept.write_bytes(kept.read_bytes()[:100])
    assert told(3) == 3023


def test_who_waits_for_a_compilation_is_told_so_and_that_it_is_kept(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(compiled.numba.core.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiled, "_LONG_S", 0.001)
    with caplog.at_level(logging.INFO):
        assert told(4) == 4023
    begun, done = caplog.messages
    assert begun.startswith("compiling the model's forward for this processor: about a minute")
    assert done.startswith("compiled in ")
    assert done.endswith(" s, kept for later starts")
    monkeypatch.setattr(compiled, "_LONG_S", 10.0)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert told(4) == 4023
    assert caplog.messages == []


def test_what_cannot_be_kept_is_told_so(monkeypatch, caplog):
    source = "def nothing(place, first, second): pass"
    names: dict = {}
    exec(compile(source, "<of no file>", "exec"), names)
    monkeypatch.setattr(compiled, "_LONG_S", 0.001)
    with caplog.at_level(logging.INFO):
        assert compiled.address_of(names["nothing"], "void(voidptr, int64, int64)")
    assert "for this start alone: it can be kept nowhere" in caplog.messages[-1]
