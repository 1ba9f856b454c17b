"""Evaluation prompts: pieces of held-out standard library files and language documentation.

Only text under the PSF licence is taken, so that the prompts can be redistributed with a notice.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np

from draft_node.training.corpus import DOMAINS, Document

MIN_CHARS, MAX_CHARS = 300, 600
PER_DOMAIN = 200
_PSF_ORIGINS = {"stdlib", "topics"}
_MIN_LETTERS = {"code": 0.45, "prose": 0.65}
# Parts of the standard library that state licences or notices of their own.
_FOREIGN = re.compile(r"copyright|all rights reserved|licen[sc]e", re.IGNORECASE)
NOTICE = """\
The prompts in code.jsonl and prose.jsonl are excerpts of the Python {version} standard library
and of its documentation, files that the training of the embedded target never saw.

Copyright (c) 2001-2026 Python Software Foundation. All Rights Reserved.
Licensed under the Python Software Foundation License Version 2,
https://docs.python.org/3/license.html. The excerpts are cut, otherwise unchanged; the field
"source" of each line names the file (stdlib:PATH) or the topic of `help()` (topics:NAME).

Made by `python -m draft_node.training.embedded`.
"""


def _starts(domain: str, text: str) -> list[int]:
    """Places where a prompt may begin: definitions in code, paragraphs in prose."""
    pattern = r"^(?:@|def |class |    def )" if domain == "code" else r"(?:\A|(?<=\n\n))(?=[A-Z])"
    return [match.start() for match in re.finditer(pattern, text, re.MULTILINE)]


def _cut(text: str, size: int) -> str:
    """At most `size` characters, ending at a line or word boundary."""
    if len(text) <= size:
        return text
    piece = text[:size]
    end = max(piece.rfind("\n"), piece.rfind(" "))
    return piece[:end].rstrip()


def _pieces(document: Document) -> Iterator[str]:
    """Prompts of one document, non-overlapping, lengths spread over the allowed range."""
    end, rng = 0, np.random.default_rng(list(document.source.encode()))
    for start in _starts(document.domain, document.text):
        if start < end:
            continue
        piece = _cut(document.text[start:], int(rng.integers(MIN_CHARS + 60, MAX_CHARS + 1)))
        letters = sum(map(str.isalpha, piece))
        if len(piece) < MIN_CHARS or letters < _MIN_LETTERS[document.domain] * len(piece):
            continue
        if _FOREIGN.search(piece):
            continue
        end = start + len(piece)
        yield piece


def select(documents: Sequence[Document], domain: str, count: int = PER_DOMAIN) -> list[dict]:
    """Up to `count` prompts, taken from the files in turn so that no file dominates."""
    sources = [
        d for d in documents if d.domain == domain and d.held_out and d.origin in _PSF_ORIGINS
    ]
    rounds = zip_longest(*([(d, piece) for piece in _pieces(d)] for d in sources))
    chosen = [pair for row in rounds for pair in row if pair is not None][:count]
    return [
        {"id": f"{domain}-{index:03d}", "domain": domain, "text": piece, "source": d.source}
        for index, (d, piece) in enumerate(chosen)
    ]


def write(documents: Iterable[Document], folder: Path, version: str) -> dict[str, int]:
    """Write <domain>.jsonl and NOTICE; returns the number of prompts per domain."""
    documents = list(documents)
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for domain in DOMAINS:
        chosen = select(documents, domain)
        lines = (json.dumps(prompt, ensure_ascii=False) + "\n" for prompt in chosen)
        (folder / f"{domain}.jsonl").write_text("".join(lines))
        counts[domain] = len(chosen)
    (folder / "NOTICE").write_text(NOTICE.format(version=version))
    return counts


def read(folder: Path, domain: str) -> list[dict]:
    """The prompts of one domain."""
    return [json.loads(line) for line in (folder / f"{domain}.jsonl").read_text().splitlines()]
