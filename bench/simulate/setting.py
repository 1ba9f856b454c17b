# pyright: strict
"""What a simulation is told: requests, devices, drafters and texts, each measured or stated.

Nothing here was decided by a simulator; it is all that a result depends on.
"""

from dataclasses import dataclass, field

from bench.simulate.texts import Texts
from specserve.drafters.draft_times import DraftTimes
from target_node.planning.step_table import FrozenSteps


@dataclass(frozen=True)
class Topology:
    """Who computes. Times in the other fields are those of one target's ranks together."""

    num_targets: int = 1  # services that share the draft processes
    num_processes: int = 0  # that draft, each on a device of its own

    @property
    def in_words(self) -> str:
        targets = "1 target" if self.num_targets == 1 else f"{self.num_targets} targets"
        return f"{targets}, {self.num_processes} drafting"


@dataclass(frozen=True)
class Drafters:
    """What drafting takes, where, and of how many tokens a block is."""

    gamma: int = 5  # drafted tokens of a block at most
    beside: DraftTimes | None = None  # on the target's own devices; None: nobody drafts there
    process: DraftTimes | None = None  # in a draft process; None: as beside the target
    fan_out: int = 32  # outcomes of a row and round
    link_s: float = 0.0  # one way

    @property
    def in_process(self) -> DraftTimes:
        """Raises ValueError where nobody drafts at all."""
        times = self.process or self.beside
        if times is None:
            raise ValueError("drafters: neither `beside` nor `process` says what drafts take")
        return times


@dataclass(frozen=True)
class Requests:
    """A closed loop: whoever ends is followed by another at once, whose prompt has been read."""

    num_at_once: int = 1  # of each target
    answer_len: int = 128  # tokens
    prompt_len: int = 256
    temperature: float = 0.0  # above 0 the coupled method verifies


@dataclass(frozen=True)
class Setting:
    """One simulated service."""

    steps: FrozenSteps  # what forwards take
    texts: Texts
    drafters: Drafters = field(default_factory=Drafters)
    topology: Topology = field(default_factory=Topology)
    requests: Requests = field(default_factory=Requests)
    mode: str = "auto"  # off | sync | async | auto
    policy: str = "price"  # see `target_node.planning.policies`
    # Of a mode that drafts in processes: auto | skip | local_draft | draft_now.
    miss_policy: str = "auto"
    rest_s: float = 0.0  # of a round, besides drafting and the forward, ...
    drafted_rest_s: float = 0.0  # ... of one with drafted tokens besides, ...
    row_rest_s: float = 0.0  # ... and for every row
    slower: float = 1.0  # times a forward takes as long beside a busy draft process
    weighs_costs: bool = True  # as services do; else whatever is drafted is verified by the policy
    seed: int = 0
