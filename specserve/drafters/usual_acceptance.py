# pyright: strict
"""How often drafted tokens stand, as far as it is known before a service has seen any.

`specserve calibrate` stores it with a drafter, by how rows are verified. Who has no calibration is
believed to be about as good as most: texts correct that within some hundred tokens.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from specserve.drafters.dialects import read_draft_spec
from specserve.drafters.spec import LanguageModelSpec
from specserve.drafters.stored_calibration import Calibration, find_calibration
from specserve.sampling.verification.method import VerificationMethod
from specserve.settings.config import SpeculationConfig
from specserve.settings.drafter_source import NGRAM

GREEDY = "greedy"  # a kind of verification, as every `VerificationMethod` is one
# P(a token stands | those before it do), of a model of the target's kind, and of what drafts whole
# blocks at once.
_UNKNOWN, _OF_BLOCKS = 0.7, 0.55
# What a text repeats of itself: how often there is anything, and the same of that.
_REPEATS, _OWN_TEXT = 0.2, 0.6
_LEAST, _MOST = 0.02, 0.98  # of positions that few blocks reached


class UsualAcceptance:
    """P(token k stands | those before it do), by kind of verification and position."""

    def __init__(
        self,
        survivals: Mapping[str, Sequence[float]] | None = None,
        *,
        unknown: float = _UNKNOWN,
        coverage: float = 1.0,
    ) -> None:
        """`survivals`: as `Calibration.acceptance`; `unknown`: of what is not among them.

        `coverage`: the share of rows that the drafter has anything for.
        """
        self.coverage = coverage
        self._unknown = unknown
        self._known = {kind: _conditional(of) for kind, of in (survivals or {}).items() if of}

    def of(self, kind: str, gamma: int) -> list[float]:
        """Of the first `gamma` positions; those that nobody measured are like the last measured."""
        known = self._known.get(kind) or self._like(kind)
        last = known[-1] if known else self._unknown
        return [*known[:gamma], *[last] * (gamma - len(known))]

    def _like(self, kind: str) -> list[float]:
        """The ratio test accepts alike under both its methods; else whatever there is."""
        by_ratio = (VerificationMethod.REJECTION, VerificationMethod.FORESEEABLE)
        others = [each for each in by_ratio if kind in by_ratio] + list(self._known)
        known = [each for each in others if each in self._known]
        return self._known[known[0]] if known else []


def usual_acceptance(speculation: SpeculationConfig, drafter: str, target: Path) -> UsualAcceptance:
    """What is known of `drafter`, as in `SpeculationConfig.drafter`, before `target`."""
    if drafter == NGRAM:
        return UsualAcceptance(unknown=_OWN_TEXT, coverage=_REPEATS)
    folders = [Path(drafter)]
    if speculation.local_head is not None and drafter == speculation.drafter:
        folders.append(Path(speculation.local_head))
    found = find_calibration(folders, target) if folders[-1].is_dir() else None
    if found is None:
        is_chain = isinstance(read_draft_spec(folders[0]), LanguageModelSpec)
        return UsualAcceptance(unknown=_UNKNOWN if is_chain else _OF_BLOCKS)
    return UsualAcceptance(_stored(found))


def _stored(calibration: Calibration) -> Mapping[str, Sequence[float]]:
    """Files from before acceptance was kept say it of the texts that they were evaluated on."""
    if calibration.acceptance:
        return calibration.acceptance
    kind = GREEDY if calibration.temperature == 0 else calibration.method
    return {kind: [position.mean_target for position in calibration.evaluation.after]}


def _conditional(survivals: Sequence[float]) -> list[float]:
    found: list[float] = []
    before = 1.0
    for survival in survivals:
        found.append(min(max(survival / before, _LEAST), _MOST) if before > 0 else _LEAST)
        before = survival
    return found
