# pyright: strict
"""What one service is: flags of `specserve launch` under a name; and an arm, which asks it one way.

An *arm* is one service under one method of verification: seeded requests are coupled, others follow
the service's own method.
"""

from collections.abc import Collection, Sequence

import msgspec

from specserve.sampling.verification.method import VerificationMethod

OFF, SYNC, ASYNC, AUTO = "off", "sync", "async", "auto"


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """One `specserve launch`, but for its target. The flags say all; the rest is read off them."""

    name: str
    mode: str
    flags: tuple[str, ...]
    num_drafts: int = 0  # processes
    threads: int = 1  # cores of a target rank
    verification: VerificationMethod = VerificationMethod.FORESEEABLE

    @property
    def has_draft_process(self) -> bool:
        return self.num_drafts > 0


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


def arms_of(
    services: Sequence[Service], methods: Collection[VerificationMethod], temperature: float
) -> list[Arm]:
    """At temperature 0, and in plain decoding, all methods are one.

    Coupled requests can be put to any service; other methods are a service's own.
    """
    arms: list[Arm] = []
    for service in services:
        if temperature == 0 or service.mode == OFF:
            arms.append(Arm(service=service))
            continue
        own = service.verification
        known = [method for method in (own, VerificationMethod.COUPLED) if method in methods]
        arms += [Arm(service=service, method=method) for method in dict.fromkeys(known)]
    return arms
