# pyright: strict
"""Services at rising load: verify budgets (DSpark, figure 8), and what confidences are worth.

A block drafter with a confidence head before a dense target; one pass drafts a block. How likely
tokens stand differs from token to token, so that there is something to choose. Arms of one load
draft for the same chances, drawn anew.
"""

from collections.abc import Sequence
from dataclasses import replace

from bench.simulate.beliefs import Belief
from bench.simulate.results import Load
from bench.simulate.service import Outcome, simulate
from bench.simulate.setting import Drafters, Requests, Setting, Topology
from bench.simulate.step_models import H100, QWEN_32B, chains, pace_of, roofline
from bench.simulate.texts import RankLaw, Texts

_TARGET_DEVICES = 4
_PLAIN_S = 1 / 88.8  # SSD's plain decoding
_GAMMA = 5  # DSpark-5
# A block's pass, of the drafter that shares the target's devices and of one on a device of its
# own: some layers of the target's width.
_BLOCK_S = {1: 0.9e-3, 64: 1.1e-3, 256: 1.8e-3, 1024: 5e-3}
_TEXTS = Texts(
    (0.88, 0.84, 0.8, 0.77, 0.74),
    spread=0.22,
    belief=Belief.CALIBRATED,
    recovery=RankLaw(0.35, 1.2),
    bonus=RankLaw(0.25, 1.2),
)
SYSTEM = "Qwen3-32B on 4, block drafter of 5"


def setting_of(num_at_once: int) -> Setting:
    """Synchronous, with confidences as calibrated."""
    pace = pace_of(_PLAIN_S, H100, QWEN_32B, _TARGET_DEVICES)
    times = chains({blocks: (seconds, 0.0) for blocks, seconds in _BLOCK_S.items()})
    return Setting(
        roofline(H100, QWEN_32B, _TARGET_DEVICES, pace=pace),
        _TEXTS,
        Drafters(_GAMMA, times, times, link_s=20e-6),
        requests=Requests(num_at_once, answer_len=256),
        mode="sync",
        policy="causal",
    )


def budgets(sizes: Sequence[int], tokens_each: int) -> list[Load]:
    """Policies at every load, beside one token for each row (MTP-1) and whole blocks."""
    found: list[Load] = []
    for size in sizes:
        base = setting_of(size)
        one = replace(base.drafters, gamma=1)
        off = simulate(replace(base, mode="off"), tokens_each=tokens_each)
        arms = {
            "one token (MTP-1)": replace(base, drafters=one, policy="fixed", weighs_costs=False),
            "whole blocks": replace(base, policy="fixed", weighs_costs=False),
            "causal": base,
            "barrier, async": replace(
                base, mode="async", policy="barrier", topology=Topology(num_processes=1)
            ),
        }
        for arm, setting in arms.items():
            made = simulate(setting, tokens_each=tokens_each)
            found.append(as_load(SYSTEM, setting, arm, made, off))
    return found


def beliefs(sizes: Sequence[int], tokens_each: int) -> list[Load]:
    """The same service, told more and less of what stands; `oracle` has no drafter in reality."""
    found: list[Load] = []
    for size in sizes:
        base = setting_of(size)
        off = simulate(replace(base, mode="off"), tokens_each=tokens_each)
        for belief in Belief:
            setting = replace(base, texts=replace(base.texts, belief=belief))
            made = simulate(setting, tokens_each=tokens_each)
            found.append(as_load(SYSTEM, setting, belief.value, made, off))
    return found


def as_load(system: str, setting: Setting, arm: str, made: Outcome, off: Outcome) -> Load:
    """`off`: what plain decoding makes of the same load."""
    return Load(
        system=system,
        topology=setting.topology.in_words,
        num_at_once=setting.requests.num_at_once,
        arm=arm,
        tokens_per_s=made.tokens_per_s,
        over_off=made.tokens_per_s / off.tokens_per_s,
        verify_budget=1 + made.verify_len,
        accept_len=made.accept_len,
        hit_rate=made.hit_rate,
        busy=made.busy,
        shares=made.shares,
    )


def conclusion(loads: Sequence[Load]) -> str:
    """What confidences are worth, in a sentence."""
    by_arm = {
        arm: {each.num_at_once: each.tokens_per_s for each in loads if each.arm == arm}
        for arm in {each.arm for each in loads}
    }
    told = by_arm["calibrated"]
    least, most = min(told), max(told)

    def over(arm: str, size: int) -> float:
        return told[size] / by_arm[arm][size]

    worth = max(told, key=lambda size: over("raw", size))
    return (
        f"Calibrated confidences make {over('raw', least):.2f} times the tokens of raw ones for "
        f"{least} requests at once and {over('raw', most):.2f} times for {most} (most, "
        f"{over('raw', worth):.2f}, for {worth}); over none they make {over('none', most):.2f} "
        f"times for {most}, and an oracle {1 / over('oracle', most):.2f} times what they do."
    )
