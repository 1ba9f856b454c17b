# pyright: strict
"""What a sweep has measured so far, kept turn by turn so that a stopped one can go on.

A file of JSON lines in --out: first what is measured, then what every run of the command began
with, and every finished turn. A line that a killed run left unfinished is dropped.
"""

from pathlib import Path
from typing import Any

import msgspec

from bench.machine import Machine
from bench.sweep.plan import Plan
from bench.sweep.records import Cell
from specserve.errors import InvalidField

KEPT_FILE = "turns.jsonl"


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag="sweep"):
    """What is measured, on what. Only what was measured alike may be compared."""

    plan: Plan
    target: str
    ballast: str
    drafter: str
    device: str
    flags: str  # of all services
    prompts: str  # digest of what is asked
    is_pinned: bool
    texts_may_differ: bool = False  # none were compared, and none had to be deterministic


class Session(msgspec.Struct, frozen=True, kw_only=True, tag="session"):
    """One run of the command."""

    machine: Machine


class Kept:
    """The file; everything in it, and what is added."""

    def __init__(self, out: Path, measured: Measured) -> None:
        """Raises InvalidField where `out` holds turns of something else than `measured`."""
        self.cells: list[Cell] = []
        self.sessions: list[Session] = []
        self._path = out / KEPT_FILE
        lines = self._lines()
        if lines:
            there = self._header(lines[0])
            self._read(lines[1:])
            if self.cells and there != measured:
                raise self._other(there, measured)
        self._encoder = msgspec.json.Encoder()
        self._rewrite(measured)

    @property
    def elapsed_s(self) -> float:
        """Of all runs, up to their last finished turns."""
        return max((cell.elapsed_s for cell in self.cells), default=0.0)

    def begin(self, machine: Machine) -> None:
        """A run of the command starts to measure."""
        self.sessions.append(Session(machine=machine))
        self._append(self.sessions[-1])

    def keep(self, cell: Cell) -> None:
        """At once, whatever happens next."""
        self.cells.append(cell)
        self._append(cell)

    def _lines(self) -> list[bytes]:
        try:
            return self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return []

    def _read(self, lines: list[bytes]) -> None:
        for number, line in enumerate(lines):
            try:
                found = msgspec.json.decode(line, type=Session | Cell)
            except msgspec.DecodeError as error:
                if number == len(lines) - 1:
                    return  # the run was killed while it wrote it
                raise self._unreadable() from error
            if isinstance(found, Cell):
                self.cells.append(found)
            else:
                self.sessions.append(found)

    def _header(self, line: bytes) -> Measured:
        try:
            return msgspec.json.decode(line, type=Measured)
        except msgspec.DecodeError as error:
            raise self._unreadable() from error

    def _other(self, there: Measured, measured: Measured) -> InvalidField:
        said = "; ".join(_differences(there, measured))
        return InvalidField(
            "--out",
            f"{self._path.parent} holds a sweep with other flags ({said}); repeat its command to "
            "go on with it, or give another --out",
        )

    def _unreadable(self) -> InvalidField:
        problem = f"{self._path} was not written by this version; give another --out"
        return InvalidField("--out", problem)

    def _rewrite(self, measured: Measured) -> None:
        """Without an unfinished line, after which nothing could be read."""
        lines = [measured, *self.sessions, *self.cells]
        temporary = self._path.with_suffix(".new")
        temporary.write_bytes(b"".join(self._encoder.encode(line) + b"\n" for line in lines))
        temporary.replace(self._path)

    def _append(self, line: Session | Cell) -> None:
        with self._path.open("ab") as file:
            file.write(self._encoder.encode(line) + b"\n")


def _differences(there: Measured, here: Measured) -> list[str]:
    """By the names of flags."""
    theirs, ours = _flat(there), _flat(here)
    return [
        f"--{name.replace('_', '-')} {theirs[name]} there, {ours[name]} here"
        for name in ours
        if theirs[name] != ours[name]
    ]


def _flat(measured: Measured) -> dict[str, Any]:
    fields = msgspec.structs.asdict(measured)
    plan: Plan = fields.pop("plan")
    said = {**msgspec.structs.asdict(plan), **fields}
    return {name: _word(value) for name, value in said.items()}


def _word(value: Any) -> str:  # noqa: ANN401 - whatever a field holds
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
