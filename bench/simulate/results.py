# pyright: strict
"""What is written to results.json: figures that were measured, predicted, and what they rest on."""

from collections.abc import Sequence

import msgspec

from bench.machine import Machine

CLOSE_TO_PAPER = 0.15  # goals: how far predictions may be off
CLOSE_TO_OURS = 0.10


class Vector(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that an equation is tested with; None: no system that can be simulated has it."""

    name: str
    stated: float  # by Monte Carlo or brute force
    formula: float
    simulated: float | None = None


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """A row of SSD's table, tokens a second; parts are 0 where it is a mean of others."""

    family: str
    data_set: str
    plain: float  # paper
    sync: float  # paper
    paper: float  # asynchronous
    predicted: float  # asynchronous
    off_by: float
    accept: float = 0.0  # by which the paper's synchronous speed follows from the parts
    draft_share: float = 0.0  # drafting of a synchronous round, in verifications
    tree_share: float = 0.0  # ... and of an asynchronous one
    hit_rate: float = 0.0
    accept_len: float = 0.0
    ours: float = 0.0  # asynchronous, predicted of our service with the same parts


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """SSD, figure 6 (left), predicted: over plain decoding at one batch size."""

    family: str
    batch_size: int
    jit: float
    random: float
    sync: float
    hit_rate_jit: float
    hit_rate_random: float


class DraftDevices(msgspec.Struct, frozen=True, kw_only=True):
    """SSD, figure 6 (right), predicted."""

    family: str
    num_devices: int
    over_plain: float
    hit_rate: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of `bench/results/`, and what the simulator makes of its parts; tokens a second."""

    source: str  # folder below bench/results
    arm: str
    batch_size: int
    temperature: float
    measured: float
    simulated: float
    off_by: float
    hit_rate: float | None  # as measured
    simulated_hit_rate: float
    role: str  # given | predicted
    why: str = ""  # what is not known of its parts, where it is off


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated service at one load."""

    system: str
    topology: str
    num_at_once: int
    arm: str  # mode, policy or belief
    tokens_per_s: float
    over_off: float
    verify_budget: float  # tokens of the target's forward, a request
    accept_len: float
    hit_rate: float
    busy: float  # share of the time that draft processes draft
    shares: dict[str, float]  # of rounds, by mode


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """One more device, drafting or in the target: which is faster, by rule and by simulation."""

    draft_share: float
    target_scaling: float
    by_rule: float  # tokens a second with it drafting, over those with it in the target
    at_best: float  # the same, if all blocks were there in time
    simulated: float


class Results(msgspec.Struct, kw_only=True):
    """All of it."""

    summary: dict[str, float]
    vectors: list[Vector]
    published: list[Published]
    backups: list[Backup]
    draft_devices: list[DraftDevices]
    critical_sizes: dict[str, float]  # by family
    sensitivity: dict[str, float]  # largest error of the table, by what a layer takes at least
    measured: list[Measured]
    budgets: list[Load]  # DSpark, figure 8
    beliefs: list[Load]
    conclusion: str  # of these
    predicted: list[Load]
    hosted: list[Load]  # with what the host takes now
    shared: list[Load]  # several targets on one draft process
    placed: list[Placed]
    is_quick: bool
    seed: int
    machine: Machine
    command: str
    elapsed_s: float


def close(off_by: Sequence[float], most: float) -> str:
    """How many are."""
    return f"{sum(abs(each) <= most for each in off_by)} of {len(off_by)}"
