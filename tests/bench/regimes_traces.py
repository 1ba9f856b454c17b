"""Made-up answers for the tests of `bench.regimes`."""

from collections.abc import Sequence

from bench.drafter_choice import DrafterChoice
from bench.processes import Usage
from bench.regimes.arms import ASYNC, AUTO, OFF, SYNC, Arm, Service
from bench.regimes.measure import Group
from bench.regimes.records import Delta, RowTrace, Setting, Trace
from specserve.sampling.verification.method import VerificationMethod

LM = DrafterChoice(label="lm", drafter="lm")
PLAIN = Arm(service=Service(mode=OFF))
SYNC_LM = Arm(service=Service(mode=SYNC, drafter=LM))
ASYNC_LM = Arm(service=Service(mode=ASYNC, drafter=LM))
ASYNC_FORESEEABLE = Arm(
    service=Service(mode=ASYNC, drafter=LM), method=VerificationMethod.FORESEEABLE
)
AUTO_LM = Arm(service=Service(mode=AUTO, drafter=LM, colocated=LM))
AT_1 = Setting(contest="lm", ballast="30M", batch_size=1, domain="code", temperature=1.0)
AT_0 = Setting(contest="lm", ballast="30M", batch_size=1, domain="code", temperature=0.0)


def trace(
    lengths: list[int],
    *,
    round_s: float,
    hits: Sequence[bool | None] = (),
    is_speculative: bool = True,
    counters: dict[str, float] | None = None,
    foreign_share: float = 0.0,
) -> Trace:
    """One row: a token of the prompt's round, then rounds of `lengths` tokens, evenly spaced."""
    outcomes = hits or [None] * len(lengths)
    deltas = [Delta(1.0, 1, False, None)]
    for number, (length, hit) in enumerate(zip(lengths, outcomes, strict=True), start=1):
        deltas.append(Delta(1.0 + number * round_s, length, is_speculative and length > 1, hit))
    usage = {"target": Usage(ran_s=round_s * len(lengths) / 2)}
    row = RowTrace(deltas=deltas, token_ids=list(range(1 + sum(lengths))))
    return Trace(rows=[row], usage=usage, counters=counters or {}, foreign_share=foreign_share)


def group(number: int = 0, *, foreign_share: float = 0.0, async_round_s: float = 0.2) -> Group:
    """Plainly 10 tokens a second, synchronously 12, asynchronously 2 and 4 tokens a round."""
    hits = [True, False, True, True]
    traces = {
        PLAIN: trace([1] * 12, round_s=0.1, is_speculative=False, foreign_share=foreign_share),
        SYNC_LM: trace([3, 3, 3, 3], round_s=0.25),
        ASYNC_LM: trace([4, 1, 4, 3], round_s=async_round_s, hits=hits),
        ASYNC_FORESEEABLE: trace([4, 4, 4], round_s=async_round_s, hits=[True, True, True]),
        AUTO_LM: trace([3, 1, 4, 4], round_s=0.2, hits=[None, None, True, True]),
    }
    return Group(number, traces)
