# pyright: strict
"""How much `bench.sweep` measures: loads, modes, policies, topologies, and how long.

A *load* is what a service is under: so many requests always in flight (closed loop), or requests
that arrive at a rate whatever becomes of them (open loop). A *turn* is one arm under one load once.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from bench.prompt_choice import LEAST_TOKENS, MAX_TOKENS
from bench.services.service import ASYNC, AUTO, OFF, SYNC
from bench.sweep.arrivals import KINDS, POISSON
from specserve.errors import InvalidField
from specserve.settings.config import MAX_SAMPLES
from specserve.settings.topology import parse_topology
from specserve.validation import MAX_TEMPERATURE

MODES = (OFF, SYNC, ASYNC, AUTO)
FIXED, THRESHOLD, GLOBAL = "fixed", "threshold", "global"
POLICIES = (FIXED, "price", "causal", "barrier", GLOBAL, THRESHOLD)
DEFAULT_POLICY = "price"

Number = TypeVar("Number", int, float)


class Load(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A closed loop has requests in flight, an open one a rate and its kind of arrivals."""

    in_flight: int = 0
    rate: float = 0.0  # requests a second
    arrivals: str = ""

    @property
    def is_closed(self) -> bool:
        return self.in_flight > 0

    @property
    def size(self) -> float:
        """To compare loads of one kind by."""
        return self.in_flight or self.rate

    def __str__(self) -> str:
        if self.is_closed:
            return f"{self.in_flight} in flight"
        return f"{self.rate:g} a second, {self.arrivals}"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Fields are named after the flags. What has been measured under one plan belongs together."""

    batch_sizes: tuple[int, ...]
    rates: tuple[float, ...] = ()
    arrivals: tuple[str, ...] = (POISSON,)
    modes: tuple[str, ...] = MODES
    policies: tuple[str, ...] = (DEFAULT_POLICY, FIXED)  # the first is that of `auto`
    only_largest: bool = False  # further policies, at other loads than the largest of a kind
    topologies: tuple[str, ...] = ("1+0", "1+1")
    threads: int = 1  # cores of a target rank
    temperatures: tuple[float, ...]
    sampling: dict[str, float] = {}  # of every request, besides its temperature
    max_tokens: int = MAX_TOKENS  # of an answer
    requests: int  # of a turn, at least; and twice as many as are in flight
    repeats: int = 3
    fresh: bool = False  # other processes for every repeat: no two of the same kind are as fast
    warm_up_s: float  # of every load, for what chooses by what it has measured
    budget_s: float | None = None  # after that long, as little as possible of what is left

    @property
    def loads(self) -> list[Load]:
        """Closed loops first, each kind by its size."""
        closed = [Load(in_flight=size) for size in self.batch_sizes]
        opened = [Load(rate=rate, arrivals=kind) for kind in self.arrivals for rate in self.rates]
        return closed + opened

    def is_largest(self, load: Load) -> bool:
        """Of its kind."""
        kind = [each for each in self.loads if each.arrivals == load.arrivals]
        return load.size == max(each.size for each in kind)

    def requests_of(self, load: Load) -> int:
        """Of a turn, if there is time."""
        return max(self.requests, 2 * load.in_flight)

    def check(self) -> None:
        """Raises InvalidField for what cannot be measured."""
        for field, value, least, most in (
            ("--batch-sizes", min(self.batch_sizes, default=1), 1, MAX_SAMPLES),
            ("--batch-sizes", max(self.batch_sizes, default=1), 1, MAX_SAMPLES),
            ("--temperature", min(self.temperatures), 0, MAX_TEMPERATURE),
            ("--temperature", max(self.temperatures), 0, MAX_TEMPERATURE),
            ("--max-tokens", self.max_tokens, LEAST_TOKENS, 2**20),
            ("--requests", self.requests, 1, 2**20),
            ("--repeats", self.repeats, 1, 1000),
            ("--threads", self.threads, 1, 1024),
            ("--warm-up", self.warm_up_s, 0, 3600),
            ("--budget", 1 if self.budget_s is None else self.budget_s, 1, 2**20),
        ):
            if not least <= value <= most:
                problem = f"{value:g} is not from {least:g} to {most:g}; type a figure that is"
                raise InvalidField(field, problem)
        if min(self.rates, default=1.0) <= 0:
            raise InvalidField("--rates", "is in requests a second: type figures above 0")
        if not self.loads:
            raise InvalidField("--batch-sizes", "there is no load: type 1,4,16, or --rates 0.5")
        drafts = [parse_topology(word).num_draft_processes for word in self.topologies]
        if ASYNC in self.modes and not any(drafts):
            problem = "async needs a draft process: add 1+1, or leave async out of --modes"
            raise InvalidField("--topologies", problem)


FULL = Plan(
    batch_sizes=(1, 2, 4, 8, 16, 32, 64), temperatures=(0.0, 1.0), requests=16, warm_up_s=30.0
)
QUICK = Plan(
    batch_sizes=(1, 4, 16),
    temperatures=(1.0,),
    requests=4,
    warm_up_s=8.0,
    only_largest=True,
    budget_s=820.0,  # of 15 minutes: answers that are under way then are awaited
)


class Targets(msgspec.Struct, frozen=True, kw_only=True):
    """What users want, of which figures are made afterwards."""

    ttft_ms: float = 2000.0  # to the first token
    tpot_ms: float = 100.0  # between tokens, mean of an answer
    interactivity: float = 10.0  # tokens a second that one user gets

    def check(self) -> None:
        """Raises InvalidField."""
        if not (self.ttft_ms > 0 and self.tpot_ms > 0):
            problem = "takes two times above 0: type --latency-target-ms 2000 100"
            raise InvalidField("--latency-target-ms", problem)
        if not self.interactivity > 0:
            problem = "is tokens a second above 0: type --interactivity 10"
            raise InvalidField("--interactivity", problem)


def split(words: Sequence[str]) -> list[str]:
    """`1,2 4` is 1, 2 and 4."""
    return [part for word in words for part in word.split(",") if part]


def read_numbers(
    field: str, words: Sequence[str], kind: Callable[[str], Number], example: str
) -> tuple[Number, ...]:
    """In rising order, each once. Raises InvalidField."""
    found: set[Number] = set()
    for word in split(words):
        try:
            number = kind(word)
        except ValueError:
            number = kind("-1") if word == "nan" else None
        if number is None or not abs(number) < float("inf"):
            problem = f"{word!r} is no number of this kind; type {field} {example}"
            raise InvalidField(field, problem)
        found.add(number)
    if not found:
        raise InvalidField(field, f"is empty; type {field} {example}")
    return tuple(sorted(found))


def read_names(field: str, words: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Each once, in the order of the command line. Raises InvalidField."""
    found = dict.fromkeys(split(words))
    for word in found:
        if word not in known:
            raise InvalidField(field, f"{word!r} is none of {', '.join(known)}; type one of them")
    if not found:
        raise InvalidField(field, f"is empty; type some of {','.join(known)}")
    return tuple(found)


def read_policies(words: Sequence[str]) -> tuple[str, ...]:
    """`threshold:CHANCE` besides the names. Raises InvalidField."""
    names: list[str] = []
    for word in split(words):
        name, _, chance = word.partition(":")
        if name == THRESHOLD:
            try:
                is_chance = 0 <= float(chance) <= 1
            except ValueError:
                is_chance = False
            if not is_chance:
                problem = f"{word!r} needs a chance from 0 to 1: type {THRESHOLD}:0.3"
                raise InvalidField("--policies", problem)
        elif chance:
            problem = f"{word!r}: {name} takes no number; type {name}"
            raise InvalidField("--policies", problem)
        names.append(word if name == THRESHOLD else name)
    plain = [name for name in names if not name.startswith(THRESHOLD)]
    if plain or not names:
        read_names("--policies", plain, POLICIES)
    return tuple(dict.fromkeys(names))


def read_topologies(words: Sequence[str]) -> tuple[str, ...]:
    """Each once. Raises InvalidField."""
    try:
        found = [str(parse_topology(word)) for word in split(words)]
    except InvalidField as error:
        raise InvalidField("--topologies", f"{error.problem}; type 1+0,1+1") from error
    if not found:
        raise InvalidField("--topologies", "is empty; type 1+0,1+1")
    return tuple(dict.fromkeys(found))


def read_arrivals(words: Sequence[str]) -> tuple[str, ...]:
    """Raises InvalidField."""
    return read_names("--arrivals", words, KINDS)
