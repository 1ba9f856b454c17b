# pyright: strict
"""How much `bench.peers` measures."""

import msgspec

from specserve.errors import InvalidField

LEAST_TOKENS = 4  # of an answer: the first one, and a few decoded ones


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A pass asks every arm once, with the same prompts."""

    threads: tuple[int, ...]  # cores of a server, and threads it computes with
    num_requests: tuple[int, ...]  # side by side
    num_passes: int
    num_tokens: int  # of every answer
    # For each number of requests: `auto` and async choose by what they have measured, as services
    # do that have run for a while.
    warm_up_s: float
    modes: tuple[str, ...] = ()  # of arms, all unless named
    peers: tuple[str, ...] = ()  # the same

    def check(self, num_cores: int) -> None:
        """Raises InvalidField for what cannot be measured on that many cores."""
        for field, value, least in (
            ("--threads", min(self.threads), 1),
            ("--requests", min(self.num_requests), 1),
            ("--passes", self.num_passes, 1),
            ("--max-tokens", self.num_tokens, LEAST_TOKENS),
        ):
            if value < least:
                raise InvalidField(field, f"{value} is less than {least}")
        if max(self.threads) > num_cores:
            problem = f"{max(self.threads)} is more than the {num_cores} cores of this machine"
            raise InvalidField("--threads", problem)


FULL = Plan(threads=(1, 2), num_requests=(1, 4, 16), num_passes=10, num_tokens=128, warm_up_s=20.0)
QUICK = Plan(threads=(1, 2), num_requests=(1, 4), num_passes=2, num_tokens=16, warm_up_s=0.0)
