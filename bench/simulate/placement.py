# pyright: strict
"""One more device: where the rule says that it serves faster, and where simulated services do.

The rule is `specserve.settings.device_use`. Its services have one request; drafting takes a share
of a forward, and the target with the device is so many times as fast. Tokens cost nothing besides,
so that both sides verify whole blocks. What is done about misses is what the planner finds best.
"""

from collections.abc import Sequence
from dataclasses import replace

from bench.simulate.results import Placed
from bench.simulate.service import simulate
from bench.simulate.setting import Drafters, Requests, Setting, Topology
from bench.simulate.step_models import chains, measured_steps
from bench.simulate.texts import RankLaw, Texts
from bench.ssd_formulas import expected_tokens
from specserve.settings.device_use import DeviceUse, gain_of_drafting, kept_tokens

_FORWARD_S = 0.02
_ACCEPT, _GAMMA = 0.8, 5
_RANKS = RankLaw(0.3, 1.0)
_HITS = 0.9  # of rounds, as the rule assumes: what is usual where drafts are in time
SHARES = (0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8)
SCALINGS = (1.0, 1.15, 1.3, 1.5, 1.75, 2.0)
MARGIN = 0.03  # by which one side is clearly faster
KEPT = kept_tokens(_HITS, expected_tokens(_ACCEPT, _GAMMA))


def compare(shares: Sequence[float], scalings: Sequence[float], tokens: int) -> list[Placed]:
    """Every pair."""
    found: list[Placed] = []
    for share in shares:
        drafting = simulate(_drafting(share), tokens_each=tokens)
        for scaling in scalings:
            in_target = simulate(_in_target(share, scaling), tokens_each=tokens)
            use = DeviceUse(share, scaling, kept=KEPT)
            found.append(
                Placed(
                    draft_share=share,
                    target_scaling=scaling,
                    by_rule=gain_of_drafting(use),
                    at_best=gain_of_drafting(use._replace(kept=1.0)),
                    simulated=drafting.tokens_per_s / in_target.tokens_per_s,
                )
            )
    return found


def _drafting(share: float) -> Setting:
    base = _base(share, 1.0)
    drafters = replace(base.drafters, beside=None, process=base.drafters.beside)
    return replace(base, mode="async", drafters=drafters, topology=Topology(1, 1))


def _in_target(share: float, scaling: float) -> Setting:
    return replace(_base(share, scaling), mode="sync")


def _base(share: float, scaling: float) -> Setting:
    """A block takes one pass, of sixteen at once twice as long as of one."""
    draft_s = share * _FORWARD_S
    forward_s = _FORWARD_S / scaling
    return Setting(
        measured_steps({1: forward_s, 4096: forward_s}),
        Texts((_ACCEPT,), recovery=_RANKS, bonus=_RANKS),
        Drafters(_GAMMA, chains({1: (draft_s, 0.0), 16: (2 * draft_s, 0.0)})),
        requests=Requests(answer_len=512),
        policy="fixed",
        weighs_costs=False,
    )
