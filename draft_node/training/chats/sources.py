# pyright: strict
"""Questions over what comes with Python: its standard library and its language reference.

Both are under the PSF licence (version 2), so that what is made of them may be passed on.
"""

import ast
import functools
import importlib
import itertools
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

LICENCES = {
    "standard library": "PSF-2.0",
    "language reference (pydoc_data.topics)": "PSF-2.0",
}
_LONGEST, _SHORTEST = 900, 80  # characters of what is asked about
_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "encodings", "site-packages", "__pycache__"}
_ABOUT_CODE = (
    "What does this Python function do?\n\n```python\n{code}\n```",
    "Explain the following code step by step.\n\n```python\n{code}\n```",
    "Write a unit test for this function:\n\n```python\n{code}\n```",
    "Can you find a bug in this code, or make it simpler?\n\n```python\n{code}\n```",
    "Add type hints and a docstring to this code:\n\n```python\n{code}\n```",
)
_TO_CODE = (
    "Write a Python function called `{name}` that does the following:\n\n{doc}",
    "Implement `{name}` in Python. {doc}",
)
_ABOUT_TEXT = (
    "Summarize the following text in two sentences.\n\n{text}",
    "Explain this in simple words:\n\n{text}",
    "Write three questions about the following text, and answer them.\n\n{text}",
    "Rewrite this text as a list of points.\n\n{text}",
    "Translate the following text into French.\n\n{text}",
)


def questions(seed: int) -> Iterator[str]:
    """Questions in an order that depends on `seed` alone: no end, or none if there are no sources.

    The same is asked again in other words, and in the end in the same.
    """
    rng = np.random.default_rng(seed)
    texts = [text for topic in _topics() for text in _paragraphs(topic)]
    found = bool(texts)
    while found:
        found = False
        code = _shuffled(_files(), rng)
        from_text = itertools.cycle([texts[int(i)] for i in rng.permutation(len(texts))])
        for path in code:
            pieces = list(_functions(path))
            for index in rng.permutation(len(pieces))[:2]:
                found = True
                name, doc, source = pieces[int(index)]
                yield _pick(_ABOUT_CODE, rng).format(code=source)
                yield _pick(_ABOUT_TEXT, rng).format(text=next(from_text))
                if doc:
                    yield _pick(_TO_CODE, rng).format(name=name, doc=doc)


@functools.cache
def _files() -> list[Path]:
    """Of the standard library; what is skipped, packages beside it above all, is not read."""
    found: list[Path] = []
    for folder, folders, names in os.walk(sysconfig.get_paths()["stdlib"]):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(found)


def _pick(templates: tuple[str, ...], rng: np.random.Generator) -> str:
    return templates[int(rng.integers(len(templates)))]


def _shuffled(paths: list[Path], rng: np.random.Generator) -> list[Path]:
    return [paths[int(i)] for i in rng.permutation(len(paths))]


def _functions(path: Path) -> Iterator[tuple[str, str, str]]:
    """Name, docstring or "", and source of the functions in a file that are of a fit length."""
    try:
        text = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings
            tree = ast.parse(text)
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError):
        return
    lines = text.split("\n")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
            source = _source(node, lines)
            doc = ast.get_docstring(node) or ""
            if _SHORTEST <= len(source) <= _LONGEST:
                yield node.name, doc if _SHORTEST <= len(doc) <= _LONGEST else "", source


def _source(node: ast.FunctionDef, lines: list[str]) -> str:
    """As `ast.get_source_segment`, which splits the whole file for every function."""
    assert node.end_lineno is not None
    *before, last = lines[node.lineno - 1 : node.end_lineno]
    last = last.encode()[: node.end_col_offset].decode()
    return "\n".join([*before, last])[node.col_offset :]


def _topics() -> list[str]:
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    return [topics[name] for name in sorted(topics)]


def _paragraphs(topic: str) -> Iterator[str]:
    for text in topic.split("\n\n"):
        words = " ".join(text.split())
        if 3 * _SHORTEST <= len(words) <= _LONGEST and words[0].isupper():
            yield words
