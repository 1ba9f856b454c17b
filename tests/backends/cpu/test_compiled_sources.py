"""Whatever a kept compiled function is made of is part of what it is kept for."""

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from specserve.backends.cpu import compiled, compiled_sources, kernel_layout, layer_kernels
from specserve.backends.cpu.compiled_sources import sources_of

pytest.importorskip("numba")

ROOT = Path(compiled.__file__).parents[3]
ALL = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text(encoding="utf-8")
    for package in compiled_sources.PACKAGES
    for path in (ROOT / package).rglob("*.py")
}
COMPILING = re.compile(r"\bcompiled\.compiled\b")


def codes_of(function) -> Iterator[CodeType]:
    """Of a compiled function, of those inside it, and of those of its own file that it calls."""
    seen, left = set(), [function.py_func.__code__]
    places = function.py_func.__globals__
    while left:
        code = left.pop()
        if code in seen:
            continue
        seen.add(code)
        yield code
        left += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        called = (places.get(name) for name in code.co_names)
        left += [
            other.py_func.__code__
            for other in called
            if getattr(getattr(other, "py_func", None), "__globals__", None) is places
        ]


def is_foreign(value, name: str, text: str) -> bool:
    """Whether a file of text has `name` from another one of ours."""
    if value is compiled or (isinstance(value, ModuleType) and value.__name__ not in ALL):
        return False
    imports = re.findall(
        r"^from (?:specserve|draft_node|target_node)[\w.]* import (\([^)]*\)|.*)", text, re.M
    )
    return any(re.search(rf"\b{name}\b", names) for names in imports)


def foreign_names(function) -> set[str]:
    places = function.py_func.__globals__
    text = ALL[function.py_func.__module__]
    names = {name for code in codes_of(function) for name in code.co_names if name in places}
    return {name for name in names if is_foreign(places[name], name, text)}


def kept_functions() -> dict[str, object]:
    import numba.core.caching

    found = {}
    for name, text in ALL.items():
        if not COMPILING.search(text) or name == "specserve.backends.cpu.compiled":
            continue
        for key, value in vars(importlib.import_module(name)).items():
            is_own = getattr(getattr(value, "py_func", None), "__module__", "") == name
            if is_own and not isinstance(value._cache, numba.core.caching.NullCache):
                found[f"{name}.{key}"] = value
    return found


def test_the_sources_of_a_file_are_all_that_it_imports_in_the_end():
    record = {path.name for path in sources_of(Path(kernel_layout.__file__))}
    assert {"layer_kernels.py", "kernel_arguments.py", "primitives.py"} <= record
    assert len(record) < 12  # whatever else changes does not compile all of it again


def test_a_change_anywhere_is_another_key(tmp_path, monkeypatch):
    package = tmp_path / "specserve"
    package.mkdir()
    (package / "own.py").write_text("from specserve import between\n")
    (package / "between.py").write_text("import math\nfrom specserve.far import (\n    ONE,\n)\n")
    (package / "other.py").write_text("")
    far = package / "far.py"
    far.write_text("from specserve import own\nONE = 1\n")  # in a circle
    monkeypatch.setattr(compiled_sources, "_ROOT", tmp_path)

    def key() -> int:
        compiled_sources.key_of.cache_clear()
        compiled_sources._imported.cache_clear()
        return compiled_sources.key_of(str(package / "own.py"))

    try:
        before = key()
        (package / "other.py").write_text("TWO = 2\n")
        assert key() == before
        far.write_text(far.read_text().replace("1", "2"))
        assert key() != before
    finally:
        compiled_sources.key_of.cache_clear()
        compiled_sources._imported.cache_clear()


def test_whoever_is_made_of_other_files_encloses_their_key():
    kept = kept_functions()
    assert set(kept) == {"specserve.backends.cpu.noise.word_floats"}
    assert not foreign_names(kept["specserve.backends.cpu.noise.word_floats"])
    assert {"call"} <= foreign_names_of_file(layer_kernels)


def foreign_names_of_file(module: ModuleType) -> set[str]:
    """Of all its compiled functions: what the forward that is kept encloses the key for."""
    functions = [value for value in vars(module).values() if hasattr(value, "py_func")]
    return {name for function in functions for name in foreign_names(function)}


def test_nobody_else_asks_numba():
    assert [name for name, text in ALL.items() if "import numba" in text] == [
        "specserve.backends.cpu.compiled"
    ]
    calls = {name: text.count("compiled.address_of(") for name, text in ALL.items()}
    assert {name for name, count in calls.items() if count} == {
        "specserve.backends.cpu.kernel_layout"
    }
    text = ALL["specserve.backends.cpu.kernel_layout"]
    assert text.count("compiled.address_of(_reader(key_of(__file__))") == 1


def test_make_knows_what_is_compiled():
    found = {str(path) for path in compiled_sources.all_sources()}
    names = ("layer_kernels", "kernel_arguments", "primitives", "noise")
    assert {f"specserve/backends/cpu/{name}.py" for name in names} <= found
    assert len(found) < 20
    command = [sys.executable, "-m", "specserve.backends.cpu.compiled_sources"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(said.split()) == found
