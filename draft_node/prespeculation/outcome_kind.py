# pyright: strict
"""How predictable a next token is, which depends on how it will be drawn. Knows no tensors."""

import enum

from specserve.sampling.verification.rule import VerificationRule


class OutcomeKind(enum.StrEnum):
    """Rows of one kind share their hit rates."""

    GREEDY = "greedy"  # the likeliest token
    REJECTION = "rejection"  # a sample by noise that only the target has
    FORESEEABLE = "foreseeable"  # a sample of the residual by shared noise
    COUPLED = "coupled"  # drawn with the same noise

    @staticmethod
    def of(rule: str, temperature: float) -> "OutcomeKind":
        """Of a row under a `VerificationRule`'s value; ValueError for any other."""
        rule = VerificationRule(rule)
        return OutcomeKind.GREEDY if temperature <= 0 else OutcomeKind(rule.value)

    @property
    def shares_noise(self) -> bool:
        """Whether the draft knows the noise that draws the next token."""
        return self in (OutcomeKind.FORESEEABLE, OutcomeKind.COUPLED)

    @property
    def needs_law(self) -> bool:
        """Whether drafts are judged by the ratio test."""
        return self in (OutcomeKind.REJECTION, OutcomeKind.FORESEEABLE)
