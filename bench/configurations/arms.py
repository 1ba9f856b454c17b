# pyright: strict
"""How much is measured, and which services are compared: `NAME: FLAGS` of the command
line, or the paper's configuration."""

from collections.abc import Sequence

import msgspec

from bench.prompt_choice import LEAST_TOKENS, MAX_TOKENS
from bench.services.launch_flags import read_flags, settings_of, split_flags
from bench.services.service import OFF, Service, arms_of
from specserve.errors import InvalidField
from specserve.sampling.verification.method import VerificationMethod
from specserve.settings.config import Config
from specserve.settings.topology import parse_topology


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One request at a time; lengths in tokens."""

    num_prompts: int  # of those, conversations count once
    max_tokens: int = MAX_TOKENS  # of an answer
    temperatures: tuple[float, ...] = (0.0, 1.0)
    methods: tuple[VerificationMethod, ...] = (
        VerificationMethod.FORESEEABLE,
        VerificationMethod.COUPLED,
    )
    num_passes: int  # in each of which every arm is started once
    warm_up_s: float  # of every arm, sampling and pass: what is done about misses is learned
    sampling: dict[str, float] = {}

    def check(self) -> None:
        """Raises InvalidField for what cannot be measured."""
        for field, value, least in (
            ("--max-tokens", self.max_tokens, LEAST_TOKENS),
            ("--temperatures", min(self.temperatures), 0),
            ("--passes", self.num_passes, 1),
        ):
            if value < least:
                raise InvalidField(field, f"{value} is less than {least}")


FULL = Plan(num_prompts=13, num_passes=3, warm_up_s=20.0)
QUICK = Plan(num_prompts=2, max_tokens=32, num_passes=1, warm_up_s=0.0)


PLAIN = "plain: --speculation off"
# Synchronous and asynchronous speculation with one drafter, by default and by hand, and what
# synchronous speculation makes of the draft process's core.
PAPER_ARMS = (
    PLAIN,
    "sync: --speculation sync",
    "sync gamma 12: --speculation sync --gamma 12",
    "sync, both cores: --speculation sync --gamma 12 --threads 2",
    "async: --speculation async --topology 1+1",
    "async gamma 12: --speculation async --topology 1+1 --gamma 12",
    "async by hand: --speculation async --topology 1+1 --gamma 12 --fan-out 8",
)
ARM = "--arm"
NOBODY = (None, None)
_SAID_BY_THE_BENCH = ("model.target", "model.ballast", "server.grpc_port")


def read_arms(words: Sequence[str], shared: Sequence[str], drafter: str) -> list[Service]:
    """Plain decoding first, whether it is asked for or not; `shared` flags are those of all.

    `drafter` is that of arms that speculate and name none.

    Raises InvalidField for what is no arm, or for flags that `specserve launch` does not have.
    """
    arms = [read_arm(word, shared, drafter) for word in words]
    if not any(arm.mode == OFF and arm.threads == 1 for arm in arms):
        arms.insert(0, read_arm(PLAIN, shared, drafter))
    arms.sort(key=lambda arm: arm.mode != OFF or arm.threads > 1)
    names = [arm.name for arm in arms]
    for name in names:
        if names.count(name) > 1:
            raise InvalidField(ARM, f"two arms are called {name!r}")
    return arms


def read_arm(word: str, shared: Sequence[str], drafter: str) -> Service:
    """`NAME: FLAGS`, as of `specserve launch`. Raises InvalidField."""
    name, colon, text = (part.strip() for part in word.partition(":"))
    if not name or not colon or not text:
        raise InvalidField(ARM, f"{word!r} is not NAME: FLAGS, as in {PLAIN!r}")
    own = split_flags(ARM, text)
    flags = [*shared, *own]
    said = settings_of(ARM, own)
    for dotted in _SAID_BY_THE_BENCH:
        if said[dotted] is not None:
            raise InvalidField(ARM, f"{name!r} sets {dotted}, which is the bench's to say")
    config = read_flags(ARM, flags)
    speculation = config.speculation
    if speculation.mode != OFF and (speculation.drafter, speculation.colocated_drafter) == NOBODY:
        flags += ["--drafter", drafter]
    return Service(
        name=name,
        mode=config.speculation.mode,
        flags=tuple(flags),
        num_drafts=parse_topology(config.topology.topology).num_draft_processes,
        verification=_method(config),
        threads=config.topology.threads,
    )


def check_methods(services: Sequence[Service], plan: Plan) -> None:
    """Raise InvalidField for a service that no method would measure at one of the temperatures."""
    for temperature in plan.temperatures:
        measured = {arm.service.name for arm in arms_of(services, plan.methods, temperature)}
        for service in services:
            if service.name not in measured:
                asked = ", ".join(plan.methods)
                problem = f"{asked}: {service.name!r} verifies by {service.verification}"
                raise InvalidField(
                    "--methods", f"{problem}; add --flags '--verification {plan.methods[0]}'"
                )


def _method(config: Config) -> VerificationMethod:
    try:
        return VerificationMethod(config.speculation.verification)
    except ValueError:
        known = ", ".join(VerificationMethod)
        problem = f"{config.speculation.verification!r} is not one of {known}"
        raise InvalidField("speculation.verification", problem) from None
