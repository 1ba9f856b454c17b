# pyright: strict
"""Files of prompts as others publish them: Spec-Bench, MT-Bench, HumanEval and GSM8K.

JSON lines, gzipped or not, recognised by what is in them and never by their names. Knows no model.
"""

import gzip
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from specserve.errors import InvalidField

STANDARD_PROMPTS = Path(__file__).parent / "prompts" / "standard.jsonl"  # the project's own
STANDARD, SPEC_BENCH, MT_BENCH = "standard", "spec-bench", "mt-bench"
HUMAN_EVAL, GSM8K = "human-eval", "gsm8k"
CODING, MATHS = "coding", "math_reasoning"  # what HumanEval and GSM8K are in Spec-Bench's terms
KNOWN = (
    "Spec-Bench and MT-Bench (question_id, category, turns), HumanEval (task_id, prompt) and GSM8K "
    "(question, answer), one JSON object a line, gzipped or not"
)
_FIELD = "--prompts"
_GZIP = b"\x1f\x8b"
_SPEC_BENCH_ALONE = frozenset({"translation", "summarization", "qa", MATHS, "rag"})


class PromptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation: what the user says, turn after turn. `id` is unique in its file."""

    id: str
    category: str
    turns: tuple[str, ...]


class PromptFile(msgspec.Struct, frozen=True, kw_only=True):
    """All of a file, in its order; `name` is that of its format, or "standard" for our own."""

    name: str
    records: tuple[PromptRecord, ...]

    @property
    def categories(self) -> list[str]:
        """In the order in which they first appear."""
        return list(dict.fromkeys(record.category for record in self.records))


def read_prompt_file(path: Path) -> PromptFile:
    """All prompts of a file. Raises InvalidField naming the file, the line and what is known."""
    records: list[PromptRecord] = []
    first_kind = ""
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        kind, record = _Line(path, number, line).read()
        first_kind = first_kind or kind
        if kind != first_kind:
            _fail(path, number, f"is of {kind}, but the lines before are of {first_kind}")
        records.append(record)
    if not records:
        raise InvalidField(_FIELD, f"{path} holds no prompt; known are {KNOWN}")
    known = Counter(record.id for record in records)
    [(repeated, count)] = known.most_common(1)
    if count > 1:
        raise InvalidField(_FIELD, f"{path} has {count} prompts with the id {repeated}")
    return PromptFile(name=_name(path, first_kind, records), records=tuple(records))


def _name(path: Path, kind: str, records: Sequence[PromptRecord]) -> str:
    """Spec-Bench and MT-Bench share their fields; the former has categories of its own."""
    if path.resolve() == STANDARD_PROMPTS:
        return STANDARD
    if kind == MT_BENCH and _SPEC_BENCH_ALONE & {record.category for record in records}:
        return SPEC_BENCH
    return kind


def _lines(path: Path) -> list[bytes]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidField(_FIELD, f"cannot read {path}: {error.strerror}") from error
    if content.startswith(_GZIP):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise InvalidField(_FIELD, f"{path} is no sound gzip file: {error}") from error
    return content.split(b"\n")


class _Line:
    """One line of a file, whose errors name it."""

    def __init__(self, path: Path, number: int, text: bytes) -> None:
        self._path = path
        self._number = number
        try:
            found: Any = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._fail("is no JSON")
        if not isinstance(found, dict):
            self._fail("is no JSON object")
        self._fields: dict[str, Any] = found

    def read(self) -> tuple[str, PromptRecord]:
        """The format by its fields, and what they say."""
        names = self._fields.keys()
        if names >= {"question_id", "category", "turns"}:
            return MT_BENCH, self._record(
                self._id("question_id"), self._text("category"), *self._turns()
            )
        if names >= {"task_id", "prompt"}:
            return HUMAN_EVAL, self._record(self._id("task_id"), CODING, self._text("prompt"))
        if names >= {"question", "answer"}:
            return GSM8K, self._record(str(self._number), MATHS, self._text("question"))
        some = ", ".join(sorted(names)[:6]) or "none"
        self._fail(f"is of no known format (its fields: {some})")

    @staticmethod
    def _record(record_id: str, category: str, *turns: str) -> PromptRecord:
        return PromptRecord(id=record_id, category=category, turns=turns)

    def _id(self, name: str) -> str:
        value = self._fields[name]
        if isinstance(value, bool) or not isinstance(value, int | str):
            self._fail(f"has a {name} that is no number and no text")
        return str(value)

    def _text(self, name: str) -> str:
        value = self._fields[name]
        if not isinstance(value, str) or not value.strip():
            self._fail(f"has a {name} that is no text")
        return value

    def _turns(self) -> list[str]:
        turns = self._fields["turns"]
        if not isinstance(turns, list) or not turns:
            self._fail("has turns that are no list of texts")
        for turn in turns:  # pyright: ignore[reportUnknownVariableType] - parsed JSON
            if not isinstance(turn, str) or not turn.strip():
                self._fail("has a turn that is no text")
        return turns  # pyright: ignore[reportUnknownVariableType]

    def _fail(self, problem: str) -> NoReturn:
        _fail(self._path, self._number, problem)


def _fail(path: Path, number: int, problem: str) -> NoReturn:
    raise InvalidField(_FIELD, f"{path}, line {number} {problem}; known are {KNOWN}")
