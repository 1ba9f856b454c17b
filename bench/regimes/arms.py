# pyright: strict
"""Which services are compared with each other, and how each of them is launched.

A *contest* is a set of services that are alive at the same time and asked in turn; ratios are taken
inside of a contest alone. Plain decoding takes part in all of them. An *arm* is one service under
one method of verification: seeded requests are coupled, others follow the service's own method.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from bench.drafter_choice import (
    DFLASH,
    DSPARK,
    DSPARK_ASYNC,
    LANGUAGE_MODEL,
    LOCAL_HEAD,
    DrafterChoice,
)
from bench.regimes.plan import Plan
from specserve.sampling.verification.method import VerificationMethod
from specserve.settings.drafter_source import NGRAM

OFF, SYNC, ASYNC, AUTO = "off", "sync", "async", "auto"
FAN_OUT = "fan-out"  # in the name of a contest of budgets
DEFAULT_FAN_OUT, DEFAULT_MISS_POLICY = 32, "auto"
MISS_POLICIES = ("auto", "skip", "ngram", "local_draft", "draft_now")
EQUAL_CORES = 2  # those of a target and one draft process

Drafters = Mapping[str, DrafterChoice]


class GivenFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wrote by hand, under a name of his choice."""

    name: str
    flags: tuple[str, ...]
    num_drafts: int


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """One `specserve launch`, but for its target."""

    mode: str
    given: GivenFlags | None = None  # instead of all that follows but `threads` and the method
    drafter: DrafterChoice | None = None
    colocated: DrafterChoice | None = None  # beside the target: of auto, and after a miss
    verification: VerificationMethod = VerificationMethod.FORESEEABLE
    threads: int = 1
    fan_out: int = DEFAULT_FAN_OUT
    miss_policy: str = DEFAULT_MISS_POLICY

    @property
    def has_draft_process(self) -> bool:
        if self.given is not None:
            return self.given.num_drafts > 0
        return self.mode in (ASYNC, AUTO)

    @property
    def learns(self) -> bool:
        """Whether it chooses by what it has measured: modes, or what is done about misses."""
        by_misses = self.mode == ASYNC and self.miss_policy == DEFAULT_MISS_POLICY
        return self.mode == AUTO or by_misses

    @property
    def label(self) -> str:
        """Without the method of verification, which is not the service's alone."""
        if self.given is not None:
            return self.given.name
        parts = [self.mode]
        if self.mode in (SYNC, ASYNC) and self.drafter is not None:
            parts.append(self.drafter.label)
        if self.fan_out != DEFAULT_FAN_OUT:
            parts.append(f"{FAN_OUT} {self.fan_out}")
        if self.miss_policy != DEFAULT_MISS_POLICY:
            parts.append(self.miss_policy)
        if self.threads > 1:
            parts.append(f"{self.threads} threads")
        return " ".join(parts)

    @property
    def flags(self) -> list[str]:
        """Of `specserve launch`."""
        if self.given is not None:
            return list(self.given.flags)
        flags = ["--speculation", self.mode, "--threads", str(self.threads)]
        flags += ["--topology", "1+1" if self.has_draft_process else "1+0"]
        flags += ["--verification", self.verification.value]
        if self.has_draft_process:
            flags += ["--draft-threads", "1", "--fan-out", str(self.fan_out)]
            flags += ["--miss-policy", self.miss_policy]
        if self.drafter is not None:
            flags += ["--drafter", self.drafter.drafter]
            if self.drafter.local_head is not None:
                flags += ["--local-head", self.drafter.local_head]
        if self.colocated is not None:
            flags += ["--colocated-drafter", self.colocated.drafter]
        return flags


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """A service asked in one way."""

    service: Service
    method: VerificationMethod = VerificationMethod.COUPLED

    @property
    def is_plain(self) -> bool:
        return self.service.mode == OFF

    @property
    def is_reference(self) -> bool:
        """What all others are compared with: plain decoding on one core."""
        return self.is_plain and self.service.threads == 1


class Contest(msgspec.Struct, frozen=True, kw_only=True):
    """Services alive at the same time, the plain one first."""

    name: str
    services: tuple[Service, ...]
    batch_sizes: tuple[int, ...]
    num_prompts: int  # a domain, at batch 1

    def arms(self, methods: Collection[VerificationMethod], temperature: float) -> list[Arm]:
        """At temperature 0, and in plain decoding, all methods are one."""
        arms: dict[Arm, None] = {}
        for service in self.services:
            if temperature == 0 or service.mode == OFF:
                # Of twins that differ in the method of unseeded requests alone, one will do.
                known = {arm.service.label for arm in arms}
                if service.label not in known:
                    arms[Arm(service=service)] = None
                continue
            own = service.verification
            arms |= {Arm(service=service, method=own): None} if own in methods else {}
            is_coupled_known = any(
                arm.method is VerificationMethod.COUPLED and arm.service.label == service.label
                for arm in arms
            )
            if VerificationMethod.COUPLED in methods and not is_coupled_known:
                arms[Arm(service=service)] = None
        return list(arms)


class Entrants(msgspec.Struct, frozen=True, kw_only=True):
    """What contests are made of."""

    plan: Plan
    drafters: dict[str, DrafterChoice]  # by label
    num_cores: int

    def contests(self) -> list[Contest]:
        """The most important first; none that would consist of plain decoding alone."""
        label = self._main_label()
        main, side = self.plan.batch_sizes, self.plan.side_batch_sizes
        many, few = self.plan.num_prompts, self.plan.num_side_prompts
        drafters = self._sync(DFLASH) + self._sync(LOCAL_HEAD)
        found = [
            _contest(label, self._by_default(label), main, many),
            _contest(NGRAM, self._against_sync(NGRAM) if label != NGRAM else [], side, few),
            _contest(DSPARK, self._against_sync(DSPARK), side, many),
            *(_contest(name, some, side[:1], few) for name, some in self._fan_outs().items()),
            _contest("drafters", drafters, side, few),
            _contest("miss policy", self._miss_policies(), side, few),
        ]
        return [contest for contest in found if len(contest.services) > 1]

    def _main_label(self) -> str:
        """Of the drafter that figures are wanted of first."""
        return LANGUAGE_MODEL if LANGUAGE_MODEL in self.drafters else NGRAM

    def _by_default(self, label: str) -> list[Service]:
        """With what drafts where nobody names a drafter, here and there."""
        services = self._against_sync(label)
        choice = self.drafters.get(label)
        if "auto" in self.plan.families and choice is not None:
            services.append(Service(mode=AUTO, drafter=choice, colocated=choice))
        if "two-threads" in self.plan.families and self.num_cores >= EQUAL_CORES:
            services.append(Service(mode=OFF, threads=EQUAL_CORES))
        return services

    def _against_sync(self, label: str) -> list[Service]:
        """Synchronous and asynchronous speculation with one kind of drafter, under all methods."""
        choice = async_choice(self.drafters, label)
        services = self._sync(label)
        if f"async-{label}" in self.plan.families and choice is not None:
            services += self._by_method(self._asynchronous(label, choice))
        if "two-threads" in self.plan.families and self.num_cores >= EQUAL_CORES:
            services += self._sync(label, threads=EQUAL_CORES)[:1]
        return services

    def _asynchronous(self, label: str, choice: DrafterChoice) -> Service:
        """After a miss it may draft beside the target what synchronous speculation would."""
        return Service(mode=ASYNC, drafter=choice, colocated=self.drafters.get(label))

    def _sync(self, label: str, threads: int = 1) -> list[Service]:
        choice = self.drafters.get(label)
        if f"sync-{label}" not in self.plan.families or choice is None:
            return []
        return self._by_method(Service(mode=SYNC, drafter=choice, threads=threads))

    def _by_method(self, service: Service) -> list[Service]:
        """Coupled requests can be put to any of them; plain rejection needs one of its own."""
        own = [method for method in self.plan.methods if method is not VerificationMethod.COUPLED]
        own.sort(key=lambda method: method is VerificationMethod.REJECTION)
        return [
            msgspec.structs.replace(service, verification=method)
            for method in own or [VerificationMethod.FORESEEABLE]
        ]

    def _fan_outs(self) -> dict[str, list[Service]]:
        """By the name of the contest: one for each budget."""
        if FAN_OUT not in self.plan.families:
            return {}
        labels = self.plan.fan_out_drafters
        choices = [(label, async_choice(self.drafters, label)) for label in labels]
        return {
            f"{label}, {FAN_OUT} {fan_out}": [
                msgspec.structs.replace(self._asynchronous(label, choice), fan_out=fan_out)
            ]
            for label, choice in choices
            if choice is not None
            for fan_out in self.plan.fan_outs
        }

    def _miss_policies(self) -> list[Service]:
        choice = self.drafters.get(LANGUAGE_MODEL)
        if "miss-policy" not in self.plan.families or choice is None:
            return []
        return [
            msgspec.structs.replace(self._asynchronous(LANGUAGE_MODEL, choice), miss_policy=policy)
            for policy in MISS_POLICIES
        ]


def _contest(
    name: str, services: Sequence[Service], batch_sizes: tuple[int, ...], num_prompts: int
) -> Contest:
    """With plain decoding."""
    every = (Service(mode=OFF), *services)
    return Contest(name=name, services=every, batch_sizes=batch_sizes, num_prompts=num_prompts)


def async_choice(drafters: Drafters, label: str) -> DrafterChoice | None:
    """What a draft process drafts with where the target's own process would take `label`."""
    heavier = drafters.get(DSPARK_ASYNC) if label == DSPARK else None
    return heavier or drafters.get(label)
