"""What documents show in blocks: commands, snippets and files, each with the page it stands on."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.docs.raised import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "bench" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Without those of benches, which are for whoever works on it.
OF_USERS = [page for page in PAGES if page.parent.name != "bench"]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Blocks that are indented instead, whose first words are those of a command.
_INDENTED = re.compile(r"^(?: {4}| {6})((?:specserve|python -m|make|bench/|DIR/).*)", re.MULTILINE)
_CONTINUED = re.compile(r"\\\n\s*")
_SHELL = ("", "sh", "bash", "shell", "console")


class Block(NamedTuple):
    """A fenced block."""

    page: Path
    language: str
    text: str


class Command(NamedTuple):
    """One command, in words; what is piped into it is a command of its own."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(self.words)


def blocks(page: Path) -> Iterator[Block]:
    """Those of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for language, content in _FENCE.findall(text):
        yield Block(page, language, content)


def commands(page: Path) -> Iterator[Command]:
    """Every command that a page shows in a block."""
    text = page.read_text(encoding="utf-8")
    shell = [content for language, content in _FENCE.findall(text) if language in _SHELL]
    indented = _INDENTED.findall(_CONTINUED.sub(" ", _FENCE.sub("", text)))
    for content in [*shell, "\n".join(indented)]:
        for line in command_lines(content):
            for words in parts(line):
                yield Command(str(page.relative_to(ROOT)), words)


def command_lines(content: str) -> Iterator[str]:
    """Lines to type; where some begin with a prompt, the others are output."""
    lines = [
        line
        for line in _CONTINUED.sub(" ", content).splitlines()
        if line.strip() and not line.startswith("#")
    ]
    typed = [line[2:] for line in lines if line.startswith("$ ")]
    yield from typed or lines


def parts(line: str) -> Iterator[tuple[str, ...]]:
    """Commands of a line that are joined by pipes and such, without where output goes."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;"):
            yield tuple(words)
            words = []
        elif word in (">", ">>", "<"):
            next(lexer, None)
        else:
            words.append(word)
    if words:
        yield tuple(words)
