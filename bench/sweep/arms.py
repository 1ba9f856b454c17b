# pyright: strict
"""Who takes part in a sweep: modes, policies and topologies as services with flags of launch.

Plain and synchronous decoding run on the ranks of every topology, asynchronous decoding on every
topology with draft processes, and `auto` on these, or where there are none on all. Beside what has
draft processes there is what its cores are worth without them: synchronous decoding with as many
threads as target and drafts have together, and whatever topology without drafts has as many cores.
"""

from collections.abc import Iterator, Sequence

import msgspec

from bench.services.service import ASYNC, AUTO, OFF, SYNC, Service
from bench.sweep.plan import GLOBAL, THRESHOLD, Load, Plan
from specserve.errors import InvalidField
from specserve.settings.topology import Topology, parse_topology

_DRAFT_THREADS = 1  # cores of a draft process


class Drafting(msgspec.Struct, frozen=True, kw_only=True):
    """Who drafts; None: what comes with the target, as of `specserve launch`."""

    drafter: str | None = None  # here and there
    local_head: str | None = None

    def flags(self, mode: str, *, has_draft_process: bool) -> tuple[str, ...]:
        """Of a mode; beside the target the same one drafts, where nothing was prepared."""
        if mode == OFF or self.drafter is None:
            return ()
        head = () if self.local_head is None else ("--local-head", self.local_head)
        beside = ("--colocated-drafter", self.drafter) if has_draft_process else ()
        return ("--drafter", self.drafter, *beside, *head)


class SweepArm(msgspec.Struct, frozen=True, kw_only=True):
    """One service of a sweep."""

    mode: str
    policy: str  # empty: nothing is verified
    ranks: int
    drafts: int  # processes
    threads: int  # of a rank
    is_further: bool = False  # under a policy that is not the first
    drafting: Drafting = Drafting()

    @property
    def name(self) -> str:
        """In tables, and unique in a sweep but for the topology, which `named` adds."""
        parts = [self.mode] + ([self.policy] if self.is_further else [])
        return " ".join(parts)

    @property
    def cores(self) -> int:
        """Of all its processes but the API's; on GPUs devices, with one thread a rank."""
        return self.ranks * self.threads + self.drafts * _DRAFT_THREADS

    @property
    def topology(self) -> str:
        return str(Topology(self.ranks, self.drafts))

    @property
    def flags(self) -> tuple[str, ...]:
        """Of `specserve launch`."""
        flags = ("--speculation", self.mode, "--topology", self.topology)
        flags += ("--threads", str(self.threads))
        if self.drafts:
            flags += ("--draft-threads", str(_DRAFT_THREADS))
        flags += self.drafting.flags(self.mode, has_draft_process=self.drafts > 0)
        if not self.policy:
            return flags
        name, _, chance = self.policy.partition(":")
        flags += ("--verify-policy", name)
        if name == THRESHOLD:
            flags += ("--min-survival", chance)
        return flags + (("--verification", "coupled") if name == GLOBAL else ())


class NamedArm(msgspec.Struct, frozen=True, kw_only=True):
    """An arm under the name that it has in one sweep."""

    name: str
    arm: SweepArm
    on_main: bool  # on the hardware that modes are compared on

    @property
    def is_main(self) -> bool:
        """And under the policy that they are compared under."""
        return self.on_main and not self.arm.is_further

    @property
    def service(self) -> Service:
        return Service(
            name=self.name,
            mode=self.arm.mode,
            flags=self.arm.flags,
            num_drafts=self.arm.drafts,
            threads=self.arm.threads,
        )

    @property
    def learns(self) -> bool:
        """Whether it chooses by what it has measured: modes, or what is done about misses."""
        return self.arm.mode in (ASYNC, AUTO)

    def takes_part(self, load: Load, plan: Plan) -> bool:
        return not (self.arm.is_further and plan.only_largest) or plan.is_largest(load)

    def is_equal_hardware(self, other: "NamedArm") -> bool:
        """Whether this one, without draft processes, has as many cores as the other one with."""
        own, theirs = self.arm, other.arm
        is_fit = own.drafts == 0 and theirs.drafts > 0 and own.mode in (OFF, SYNC)
        return is_fit and not own.is_further and own.cores == theirs.cores


def arms_of(
    plan: Plan, drafting: Drafting, *, device: str, num_cores: int | None
) -> list[NamedArm]:
    """All of them, plain decoding first.

    `num_cores`: that this process may use; None: they do not bind, as on GPUs or where cores are
    shared. Raises InvalidField for a topology that needs more.
    """
    topologies = [parse_topology(word) for word in plan.topologies]
    modes = list(_modes(plan, topologies))
    for arm in modes:
        if num_cores is not None and arm.cores > num_cores:
            problem = f"{arm.topology} needs {arm.cores} cores, this process may use {num_cores}"
            raise InvalidField("--topologies", f"{problem}; leave it out, or type --unpinned")
    main = _main(topologies)
    equal = _with_threads(plan, topologies, num_cores) if device == "cpu" else ()
    arms = dict.fromkeys([*modes, *equal])
    named = [_named(msgspec.structs.replace(arm, drafting=drafting), main, plan) for arm in arms]
    return sorted(named, key=lambda each: each.arm.mode != OFF)


def _main(topologies: Sequence[Topology]) -> Topology:
    """The hardware that modes are compared on: the first with a draft process."""
    return next((each for each in topologies if each.num_draft_processes), topologies[0])


def _modes(plan: Plan, topologies: Sequence[Topology]) -> Iterator[SweepArm]:
    with_drafts = [each for each in topologies if each.num_draft_processes]
    without = [
        Topology(ranks, 0) for ranks in dict.fromkeys(t.num_target_ranks for t in topologies)
    ]
    places = {OFF: without, SYNC: without, ASYNC: with_drafts, AUTO: with_drafts or without}
    for mode in plan.modes:
        for policy in ("",) if mode == OFF else plan.policies:
            if mode == AUTO and policy != plan.policies[0]:
                continue  # it is what a launch without flags runs
            for topology in places[mode]:
                yield SweepArm(
                    mode=mode,
                    policy=policy,
                    ranks=topology.num_target_ranks,
                    drafts=topology.num_draft_processes,
                    threads=plan.threads,
                    is_further=bool(policy) and policy != plan.policies[0],
                )


def _with_threads(
    plan: Plan, topologies: Sequence[Topology], num_cores: int | None
) -> Iterator[SweepArm]:
    """Synchronous decoding with the cores of target and drafts, where ranks can share them out."""
    for topology in topologies if {ASYNC, AUTO} & set(plan.modes) else ():
        ranks, drafts = topology.num_target_ranks, topology.num_draft_processes
        threads, left = divmod(ranks * plan.threads + drafts * _DRAFT_THREADS, ranks)
        if drafts and not left and (num_cores is None or ranks * threads <= num_cores):
            yield SweepArm(
                mode=SYNC, policy=plan.policies[0], ranks=ranks, drafts=0, threads=threads
            )


def _named(arm: SweepArm, main: Topology, plan: Plan) -> NamedArm:
    """With the threads or the topology in its name where they are not the usual ones."""
    usual = str(main if arm.drafts or arm.mode == AUTO else Topology(main.num_target_ranks, 0))
    is_usual = arm.topology == usual and arm.threads == plan.threads
    parts = [arm.name]
    parts += [arm.topology] if arm.topology != usual else []
    parts += [f"{arm.threads} threads"] if arm.threads != plan.threads else []
    return NamedArm(name=" ".join(parts), arm=arm, on_main=is_usual)
