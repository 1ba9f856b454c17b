"""The corpus: code and prose found on any Python installation.

Collects documents from the running interpreter (standard library, site-packages) and, when
present, from the system's documentation folders. Deterministic for a given installation.
Knows nothing about tokens.
"""

import ast
import gzip
import importlib
import inspect
import logging
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from draft_node.training import cleaning
from draft_node.training.holdout import is_held_out, remove_overlap
from draft_node.training.progress import each

log = logging.getLogger(__name__)

DOMAINS = ("code", "prose")
MAX_FILE_CHARS = 150_000
# Evaluation prompts come from the standard library and its topics, so more of them is held out.
HELD_OUT_SHARE = {"stdlib": 0.05, "topics": 0.15, "package": 0.015, "share": 0.015, "man": 0.015}
# Upper bounds in characters per origin, in the order in which origins are read. They keep one
# chatty package from being the corpus.
MAX_ORIGIN_CHARS = {"stdlib": 60e6, "topics": 5e6, "package": 32e6, "share": 16e6, "man": 10e6}
MAX_PACKAGE_CHARS = 6e6
MAX_PAGES_PER_PROGRAM = 60
_SKIPPED_PARTS = {"__pycache__", "site-packages", "encodings", "pydoc_data", "_vendor"}
_TEXT_SUFFIXES = {".rst", ".md", ".txt"}
_TEXT_NAMES = ("METADATA", "LICENSE", "LICENCE", "COPYING", "NOTICE", "README")


@dataclass(frozen=True)
class Document:
    """One text. `source` names the file it comes from, relative to its root."""

    domain: str
    origin: str
    source: str
    text: str

    @property
    def held_out(self) -> bool:
        """Whether the file belongs to the evaluation side of the split."""
        return is_held_out(self.source, HELD_OUT_SHARE[self.origin])


def _read(path: Path) -> str:
    """Text of a file, or "" when it is not text that can be read."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return raw.decode("utf-8").replace("\r\n", "\n").expandtabs(8)
    except (OSError, UnicodeDecodeError, EOFError):
        return ""


def _files(root: Path, suffixes: set[str], names: tuple[str, ...] = ()) -> Iterator[Path]:
    """Files below root in a fixed order."""
    for path in sorted(root.rglob("*")):
        if _SKIPPED_PARTS & set(path.relative_to(root).parts):
            continue
        wanted = path.suffix in suffixes or path.name.startswith(names or ("\x00",))
        if wanted and path.is_file() and not path.is_symlink():
            yield path


def docstrings(code: str) -> str:
    """All docstrings of a module as one text, or ""."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return "\n\n".join(inspect.cleandoc(text) for text in found if text and len(text) >= 80)


def _from_python(root: Path, origin: str) -> Iterator[Document]:
    for path in _files(root, {".py"}):
        code = _read(path)
        if not code or len(code) > 4 * MAX_FILE_CHARS:
            continue
        source = f"{origin}:{path.relative_to(root).as_posix()}"
        yield Document("code", origin, source, code)
        if prose := docstrings(code):
            yield Document("prose", origin, source, prose)


def _from_text(root: Path, origin: str) -> Iterator[Document]:
    for path in _files(root, _TEXT_SUFFIXES, _TEXT_NAMES):
        if path.suffix not in {".py", ".pyi"}:
            yield Document("prose", origin, f"{origin}:{path.relative_to(root)}", _read(path))


def _from_topics() -> Iterator[Document]:
    """The language reference that `help()` shows."""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    for name, text in sorted(topics.items()):
        yield Document("prose", "topics", f"topics:{name}", text)


def _from_share(share: Path) -> Iterator[Document]:
    for folder in ("common-licenses", "doc"):
        for path in sorted((share / folder).rglob("*")):
            plain = path.name.removesuffix(".gz")
            wanted = Path(plain).suffix in _TEXT_SUFFIXES or plain.startswith(_TEXT_NAMES)
            if (wanted or folder == "common-licenses") and path.is_file():
                yield Document("prose", "share", f"share:{path.relative_to(share)}", _read(path))
    for section in ("man7", "man1", "man8", "man5", "man3", "man2"):
        seen = Counter[str]()
        for path in sorted((share / "man" / section).glob("*.gz")):
            # Some programs install thousands of near-identical pages, one per sub-command.
            program = re.split(r"[-_.]", path.name)[0]
            seen[program] += 1
            if seen[program] > MAX_PAGES_PER_PROGRAM:
                continue
            text = cleaning.strip_roff(_read(path))
            yield Document("prose", "man", f"man:{path.relative_to(share)}", text)


def _raw_documents() -> Iterator[Document]:
    """Every candidate, most wanted origins first."""
    paths = sysconfig.get_paths()
    stdlib, packages = Path(paths["stdlib"]), Path(paths["purelib"])
    yield from _from_topics()
    yield from _from_python(stdlib, "stdlib")
    yield from _from_text(stdlib, "stdlib")
    yield from _from_text(packages, "package")
    yield from _from_python(packages, "package")
    yield from _from_share(Path("/usr/share"))


class _Deduplicator:
    """Keeps the first copy of everything; state of one pass over the documents."""

    def __init__(self) -> None:
        self._documents: set[bytes] = set()
        self._headers: set[bytes] = set()
        self._paragraphs: set[bytes] = set()

    def __call__(self, document: Document) -> str:
        """What is new in the document, or ""."""
        if document.domain == "prose":
            return cleaning.drop_seen_paragraphs(document.text, self._paragraphs)
        key = cleaning.digest(document.text)
        if key in self._documents:
            return ""
        self._documents.add(key)
        return cleaning.drop_seen_header(document.text, self._headers)


def collect(raw: Iterable[Document] | None = None) -> list[Document]:
    """Clean, deduplicated documents within the bounds above."""
    fresh, used, kept = _Deduplicator(), dict[tuple[str, ...], int](), []
    for document in each("collecting text, files", _raw_documents() if raw is None else raw):
        text = fresh(document)[:MAX_FILE_CHARS]
        if cleaning.looks_generated(text):
            continue
        domain, origin = document.domain, document.origin
        package = (domain, origin, document.source.split("/")[0])
        bounds: dict[tuple[str, ...], float] = {(domain, origin): MAX_ORIGIN_CHARS[origin]}
        if origin == "package":
            bounds[package] = MAX_PACKAGE_CHARS
        if any(used.get(key, 0) + len(text) > bound for key, bound in bounds.items()):
            continue
        for key in bounds:
            used[key] = used.get(key, 0) + len(text)
        kept.append(Document(domain, origin, document.source, text))
    for (domain, origin, *rest), size in sorted(used.items()):
        if not rest:
            log.info("corpus: %-5s %-8s %6.1f M characters", domain, origin, size / 1e6)
    return kept


def split(documents: Iterable[Document]) -> tuple[list[Document], list[Document]]:
    """(training, held out), the former without text of the latter."""
    training: list[Document] = []
    held_out: list[Document] = []
    for document in documents:
        (held_out if document.held_out else training).append(document)
    clean = remove_overlap([d.text for d in training], [d.text for d in held_out])
    kept = [
        Document(d.domain, d.origin, d.source, text)
        for d, text in zip(training, clean, strict=True)
        if len(text) >= cleaning.MIN_DOCUMENT_CHARS
    ]
    lost = 1 - sum(len(d.text) for d in kept) / max(1, sum(len(d.text) for d in training))
    log.info("corpus: %d training files, %d held out, %.2f %% of training text cut as overlap",
             len(kept), len(held_out), 100 * lost)  # fmt: skip
    return kept, held_out
