# pyright: strict
"""What an audit asks for and what it found, and what follows from it. Asks nobody.

Every sampled test is screened first; what looks wrong is sampled again, afresh and larger, and
fails only if it does at the corrected rate. So a lossless service fails an audit with a probability
of `FALSE_ALARMS` at most, however many tests there are (Holm).
"""

import enum
from collections.abc import Sequence

import msgspec

from specserve.audit.chi_square import power

FALSE_ALARMS = 1e-6  # of the whole audit
SCREENING = 1e-3  # of the first look at one test
REPEATED = 4  # times as many samples for the second look
DISTANCE = 0.02  # the total variation for which the power is stated
LEAST_VERIFIED = 0.05  # share of tokens that drafts must have decided for a check to say anything
LIKELY = 0.9  # the power for which the total variation is stated
ANSWER_TOKENS = 32  # of a long answer
LEAST_TOKENS = 40  # at a place of drafted blocks, for a check to say anything
# By how much log probabilities of one token may differ that were computed in two ways, and which
# share of them by more: where arithmetic depends on the batch, and where it does not.
ROUNDING, ALLOWED = 0.25, 0.05
ROUNDING_DETERMINISTIC, ALLOWED_DETERMINISTIC = 1e-3, 0.0


class Status(enum.StrEnum):
    """How one check ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_EXERCISED = "not exercised"  # next to nothing drafted was verified
    NOT_PROMISED = "not promised"  # arithmetic depends on the batch: text may, too


class Subject(enum.StrEnum):
    """What is tested of unseeded answers."""

    TOKENS = "three tokens"
    NEIGHBOURS = "neighbours"  # samples of one request, jointly
    PLACES_1_2 = "places 1-2"  # in drafted blocks, of longer answers
    PLACES_3_4 = "places 3-4"
    PLACES_FROM_5 = "places 5+"

    @property
    def is_of_places(self) -> bool:
        return self not in (Subject.TOKENS, Subject.NEIGHBOURS)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much to ask."""

    num_requests: int  # seeded ones
    num_samples: int  # unseeded ones of each case, before any repetition
    num_candidates: int  # prompts to choose from
    num_prompts: int  # chosen for each variant
    num_long_answers: int  # of each of their variants, before any repetition
    seed: int


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What a service says of itself."""

    model: str
    deterministic: bool
    speculation: str
    drafter: str
    verification: str
    gamma: int


class Origins(msgspec.Struct, frozen=True, kw_only=True):
    """Where the tested tokens came from; shares of those that could have been drafted."""

    num_tokens: int
    num_accepted: int  # drafted, and kept
    num_verified: int  # of a round that verified a draft: accepted, recovery or bonus

    @property
    def accepted(self) -> float:
        return self.num_accepted / max(1, self.num_tokens)

    @property
    def verified(self) -> float:
        return self.num_verified / max(1, self.num_tokens)


class EqualityCheck(msgspec.Struct, frozen=True, kw_only=True, tag="equality", tag_field="check"):
    """Seeded requests, off against on: the same answers, token for token."""

    method: str
    num_requests: int
    num_tokens: int
    origins: Origins
    num_different: int
    first_difference: str
    promised: bool

    @property
    def status(self) -> Status:
        if self.num_different and self.promised:
            return Status.FAILED
        if self.origins.verified < LEAST_VERIFIED:
            return Status.NOT_EXERCISED
        return Status.PASSED if self.promised else Status.NOT_PROMISED


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One sample and its test."""

    num_samples: int
    num_cells: int
    p_value: float


class DistributionCheck(
    msgspec.Struct, frozen=True, kw_only=True, tag="distribution", tag_field="check"
):
    """Unseeded answers against their exact distribution, or neighbours against independence.

    Of places in blocks the samples are tokens, and what is tested is where each lies in its
    distribution.
    """

    method: str
    subject: Subject
    sampling: str
    prompt: str
    origins: Origins
    screening: Look
    repetition: Look | None  # only where the screening looked wrong
    status: Status = Status.PASSED

    def power(self, num_tests: int, distance: float = DISTANCE) -> float:
        """P(a distribution that is off by this total variation fails), at least.

        Of neighbours: by the joint distribution of two. Of places: by the mean over contexts.
        """
        freedom = max(1, self.screening.num_cells - 1)
        drawn = self.screening.num_samples
        if self.subject is Subject.NEIGHBOURS:
            drawn //= 2
        first = power(drawn, freedom, distance, SCREENING)
        return first * power(REPEATED * drawn, freedom, distance, FALSE_ALARMS / num_tests)

    def reach(self, num_tests: int) -> float:
        """The least total variation that fails with a probability of `LIKELY`."""
        low, high = 0.0, 1.0
        while high - low > 1e-4:
            middle = (low + high) / 2
            found = self.power(num_tests, middle) >= LIKELY
            low, high = (low, middle) if found else (middle, high)
        return high

    @property
    def is_exercised(self) -> bool:
        """Whether drafts decided enough of what was tested."""
        if self.subject.is_of_places and self.screening.num_samples < LEAST_TOKENS:
            return False
        return self.origins.verified >= LEAST_VERIFIED


class LogprobCheck(msgspec.Struct, frozen=True, kw_only=True, tag="logprobs", tag_field="check"):
    """Log probabilities that came with unseeded answers, and the target's for the same tokens."""

    method: str
    num_tokens: int
    origins: Origins
    num_different: int  # by more than `rounding`
    largest: float  # difference
    rounding: float
    allowed: float  # share of tokens that may differ by more

    @property
    def status(self) -> Status:
        if self.num_different > self.allowed * self.num_tokens:
            return Status.FAILED
        return Status.PASSED if self.origins.verified >= LEAST_VERIFIED else Status.NOT_EXERCISED


Check = EqualityCheck | DistributionCheck | LogprobCheck


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole audit."""

    served: Served
    reference: str  # where plain decoding came from
    checks: list[Check]

    @property
    def verdict(self) -> Status:
        """The worst of the checks; what says nothing proves nothing.

        But for places in blocks: a deployment whose drafts are not that good has no such tokens.
        """
        found = {check.status for check in self.checks if check not in self.unreached}
        for status in (Status.FAILED, Status.NOT_EXERCISED):
            if status in found:
                return status
        return Status.PASSED

    @property
    def unreached(self) -> list[DistributionCheck]:
        """Checks of places in blocks that too few tokens had."""
        return [
            check
            for check in self.checks
            if isinstance(check, DistributionCheck)
            and check.subject.is_of_places
            and check.status is Status.NOT_EXERCISED
        ]


def judge(checks: Sequence[DistributionCheck]) -> list[DistributionCheck]:
    """With the status of each, now that all are known."""
    suspects = sorted(
        (check.repetition.p_value, place)
        for place, check in enumerate(checks)
        if check.repetition is not None
    )
    failed: set[int] = set()
    for rank, (p_value, place) in enumerate(suspects):
        if p_value > FALSE_ALARMS / (len(checks) - rank):
            break
        failed.add(place)
    return [
        msgspec.structs.replace(check, status=_status(check, is_wrong=place in failed))
        for place, check in enumerate(checks)
    ]


def _status(check: DistributionCheck, *, is_wrong: bool) -> Status:
    if is_wrong:
        return Status.FAILED
    return Status.PASSED if check.is_exercised else Status.NOT_EXERCISED
