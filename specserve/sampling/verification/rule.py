# pyright: strict
"""The verification rules by name, and which one a request lives under. Knows no tensors."""

import enum


class VerificationRule(enum.StrEnum):
    """How drafted tokens are judged. All are exact; at temperature 0 they are the same rule."""

    REJECTION = "rejection"  # ratio test, recovery from the residual by noise nobody else has
    FORESEEABLE = "foreseeable"  # the same, but the draft knows the noise of the recovery token
    COUPLED = "coupled"  # the target's token under shared noise; a draft stands iff it is equal


def rule_for_life(default: VerificationRule, *, seeded_by_user: bool) -> VerificationRule:
    """The rule of a request from its first token to its last; `default` is the server's.

    An explicit seed promises a text, which only coupled keeps. Whoever else comes has a random seed
    that serves the rejection family as its never-reused nonce.
    """
    return VerificationRule.COUPLED if seeded_by_user else default


def judged_by(rule: VerificationRule, *, is_greedy: bool) -> VerificationRule:
    """Greedy rows are the limit of every rule: a token stands iff it is the target's."""
    return VerificationRule.COUPLED if is_greedy else rule
