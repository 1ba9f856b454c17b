# pyright: strict
"""What `bench.gpu` finds: a line of JSON as soon as it is known, and all of it in results.json."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.machine import Machine
from bench.tables import Table
from specserve.errors import InvalidField


class Step(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """A forward of the target as a node runs it: `rows`, each with `tokens` new ones."""

    model: str
    devices: int  # it is one rank's share of a target on so many, without what these exchange
    num_layers: int
    rows: int
    tokens: int  # of each row: 1 decodes, more verify
    context: int  # of each row, new tokens included
    seconds: float  # until a logit is on the host, median
    host_s: float  # ... of which the host was busy, asking the device
    floor_s: float  # reading weights and keys, at the bandwidth that a copy reached


class Draft(msgspec.Struct, frozen=True, kw_only=True, tag="draft"):
    """Blocks that a block drafter drafts at once, and what they take until they are on the host."""

    drafter: str
    target: str  # for which it has the shape
    gamma: int
    blocks: int  # rows times fan-out
    seconds: float


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag="fact"):
    """A figure that has no form of its own."""

    what: str
    value: float
    unit: str


class Left(msgspec.Struct, frozen=True, kw_only=True, tag="left"):
    """What was not measured, and why."""

    what: str
    why: str


Found = Step | Draft | Fact | Left
Report = Callable[[Found], None]


class Task(msgspec.Struct, kw_only=True):
    """One of the tasks. `ended`: done, stopped at its limit, failed, or still running."""

    name: str
    limit_s: float
    took_s: float = 0.0
    ended: str = "running"
    found: list[Found] = []


class Results(msgspec.Struct, kw_only=True):
    """Everything in results.json."""

    tasks: list[Task]
    is_dry: bool  # on a CPU, with tiny shapes: figures mean nothing
    driver: str  # of the GPU, as its kernel module says; empty without
    libraries: dict[str, str]  # versions besides those of `machine`
    machine: Machine
    command: str
    limit_s: float
    elapsed_s: float = 0.0

    def steps(self) -> list[Step]:
        return [each for task in self.tasks for each in task.found if isinstance(each, Step)]

    def drafts(self) -> list[Draft]:
        return [each for task in self.tasks for each in task.found if isinstance(each, Draft)]


def read_results(path: Path, field: str) -> Results:
    """What a run left in `path`. Raises InvalidField, naming the flag `field`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}; python -m bench.gpu writes such a file"
        raise InvalidField(field, problem) from error
    except msgspec.DecodeError as error:
        problem = f"{path} is no results.json of python -m bench.gpu: {error}"
        raise InvalidField(field, problem) from error


def heading(results: Results) -> list[str]:
    """Before the tables of the report."""
    versions = ", ".join(f"{name} {version}" for name, version in results.libraries.items())
    dry = "**Dry: on a CPU with tiny shapes, to see that every step runs. No figure counts.** "
    return [
        "# One GPU",
        f"{dry if results.is_dry else ''}{results.machine.line}, {versions}; driver "
        f"{results.driver or 'none'}. `{results.command}`, {results.elapsed_s:.0f} of at most "
        f"{results.limit_s:.0f} s.",
    ]


def tables(results: Results) -> list[Table]:
    """Tasks, and what each has found by its form."""
    ended = [
        (task.name, task.ended, f"{task.took_s:.0f} of {task.limit_s:.0f}", len(task.found))
        for task in results.tasks
    ]
    found = [Table("Tasks", ("task", "ended", "s", "figures"), ended)]
    for task in results.tasks:
        parts = (_steps(task), _drafts(task), _facts(task), _left(task))
        found += [table for table in parts if table.rows]
    return found


def _steps(task: Task) -> Table:
    header = (
        "model", "devices", "rows", "tokens a row", "context", "ms", "host, ms", "floor, ms",
        "floor / time",
    )  # fmt: skip
    rows = [
        (
            each.model, each.devices, each.rows, each.tokens, each.context,
            f"{1000 * each.seconds:.3f}", f"{1000 * each.host_s:.3f}",
            f"{1000 * each.floor_s:.3f}", f"{each.floor_s / each.seconds:.2f}",
        )
        for each in task.found if isinstance(each, Step)
    ]  # fmt: skip
    note = (
        "Random weights in bfloat16. Devices: one rank's share of a target on so many, without "
        "what ranks exchange. Floor: weights and keys read at the rate of a copy."
    )
    return Table(f"{task.name}: forwards", header, rows, note)


def _drafts(task: Task) -> Table:
    rows = [
        (each.drafter, each.target, each.gamma, each.blocks, f"{1000 * each.seconds:.3f}")
        for each in task.found
        if isinstance(each, Draft)
    ]
    header = ("drafter", "of the shape for", "tokens", "blocks at once", "ms")
    return Table(f"{task.name}: blocks", header, rows, "Random weights in bfloat16.")


def _facts(task: Task) -> Table:
    found = [each for each in task.found if isinstance(each, Fact)]
    rows = [(each.what, f"{each.value:.5g}", each.unit) for each in found]
    return Table(f"{task.name}: figures", ("what", "value", "unit"), rows)


def _left(task: Task) -> Table:
    rows = [(each.what, each.why) for each in task.found if isinstance(each, Left)]
    return Table(f"{task.name}: not measured", ("what", "why"), rows)
