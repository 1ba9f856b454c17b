# pyright: strict
"""What others have published, and what of their parts: SSD's table and figure 6, DSpark's figure 8.

The papers give speeds and settings, no times of parts. What a forward takes is a roofline of
published sizes, brought to the speed of plain decoding that the paper gives; how often drafted
tokens stand follows from its synchronous speed. Asynchronous speed is then a prediction.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from bench.simulate.lockstep import Lockstep, run, synchronous
from bench.simulate.results import Backup, DraftDevices, Published
from bench.simulate.step_models import (
    H100,
    LLAMA_1B,
    LLAMA_70B,
    QWEN_06B,
    QWEN_32B,
    Device,
    Model,
    chain_times,
    pace_of,
    roofline,
)
from bench.simulate.texts import RankLaw
from bench.ssd_formulas import accept_rate_of, critical_batch_size, expected_tokens

# "Up to 90 % accuracy" of the next token with the likeliest three (section 4.1): what is assumed
# of both models and all data sets. After a block that stands whole nothing is excluded.
RECOVERY, BONUS = RankLaw(0.35, 1.2), RankLaw(0.25, 1.2)
SYNC_LOOKAHEAD, LOOKAHEAD, FAN_OUT = 6, 7, 3  # of its table
TARGET_DEVICES = 4


class Family(NamedTuple):
    """A target, its drafter, and what the paper measured of them: tokens a second, one request."""

    name: str
    target: Model
    draft: Model
    plain: float
    by_data_set: dict[str, tuple[float, float]]  # synchronous, asynchronous


LLAMA = Family(
    "Llama-3.1-70B / 3.2-1B", LLAMA_70B, LLAMA_1B, 54.7,
    {"HumanEval": (176, 283), "UltraFeedback": (138, 215), "Alpaca": (145, 224),
     "GSM8k": (188, 301)},
)  # fmt: skip
QWEN = Family(
    "Qwen3-32B / 0.6B", QWEN_32B, QWEN_06B, 88.8,
    {"HumanEval": (146, 222), "UltraFeedback": (122, 174), "Alpaca": (127, 185),
     "GSM8k": (152, 234)},
)  # fmt: skip
FAMILIES = (LLAMA, QWEN)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)


def engine_of(family: Family, sync_tokens_per_s: float, device: Device = H100) -> Lockstep:
    """The paper's engine, with tokens that stand as often as its synchronous speed needs."""
    pace = pace_of(1 / family.plain, device, family.target, TARGET_DEVICES)
    steps = roofline(device, family.target, TARGET_DEVICES, pace=pace)
    drafts = chain_times(device, family.draft)
    engine = Lockstep(
        steps, drafts, 0.5, LOOKAHEAD, FAN_OUT, recovery=RECOVERY, bonus=BONUS, after_miss=BONUS
    )
    round_s = drafts.seconds(1, SYNC_LOOKAHEAD) + engine.verify_s()
    return replace(engine, accept=accept_rate_of(sync_tokens_per_s * round_s, SYNC_LOOKAHEAD))


def table(num_rounds: int, device: Device = H100) -> list[Published]:
    """SSD's table B.3, predicted row by row, and the means of each family."""
    found: list[Published] = []
    for family in FAMILIES:
        rows = [
            _row(engine_of(family, measured[0], device), family, data_set, num_rounds)
            for data_set, measured in family.by_data_set.items()
        ]
        mean = sum(row.predicted for row in rows) / len(rows)
        paper = sum(row.paper for row in rows) / len(rows)
        sync = sum(row.sync for row in rows) / len(rows)
        average = Published(
            family=family.name, data_set="average", plain=family.plain, sync=sync, paper=paper,
            predicted=mean, off_by=mean / paper - 1,
        )  # fmt: skip
        found += [*rows, average]
    return found


def _row(engine: Lockstep, family: Family, data_set: str, num_rounds: int) -> Published:
    sync, paper = family.by_data_set[data_set]
    ran = run(engine, num_rounds=num_rounds)
    return Published(
        family=family.name,
        data_set=data_set,
        plain=family.plain,
        sync=sync,
        paper=paper,
        predicted=ran.tokens_per_s,
        off_by=ran.tokens_per_s / paper - 1,
        accept=engine.accept,
        draft_share=engine.drafts.seconds(1, SYNC_LOOKAHEAD) / engine.verify_s(),
        tree_share=engine.tree_s() / engine.verify_s(),
        hit_rate=ran.hit_rate,
        accept_len=ran.accept_len,
    )


LAYER_S = (30e-6, 40e-6, 50e-6, 60e-6, 70e-6)


def sensitivity(num_rounds: int) -> dict[str, float]:
    """The largest error of the table's rows if a layer takes at least so long: by microseconds.

    That is the part of a draft's time that no size tells: with CUDA graphs, some tens.
    """
    found: dict[str, float] = {}
    for layer_s in LAYER_S:
        device = replace(H100, layer_s=layer_s)
        off_by = [row.off_by for row in table(num_rounds, device) if row.accept]
        found[f"{1e6 * layer_s:.0f} us"] = max(off_by, key=abs)
    return found


def backups(family: Family, num_rounds: int, sizes: Sequence[int] = BATCH_SIZES) -> list[Backup]:
    """Figure 6, left: both backups at each batch size, and sync, over plain decoding."""
    sync_speeds = [sync for sync, _ in family.by_data_set.values()]
    one = engine_of(family, sum(sync_speeds) / len(sync_speeds))
    found: list[Backup] = []
    for size in sizes:
        of_size = replace(one, num_rows=size)
        rounds = max(200, num_rounds // size)
        slow = run(of_size, num_rounds=rounds)
        fast = run(replace(of_size, backup="random"), num_rounds=rounds)
        sync = synchronous(of_size, one.drafts, SYNC_LOOKAHEAD)
        plain = size / of_size.plain_s()
        found.append(
            Backup(
                family=family.name,
                batch_size=size,
                jit=slow.over_plain,
                random=fast.over_plain,
                sync=sync / plain,
                hit_rate_jit=slow.hit_rate,
                hit_rate_random=fast.hit_rate,
            )
        )
    return found


def critical_size(family: Family, num_rounds: int) -> float:
    """Theorem 17's, from the same parts: up to so many rows waiting for the backup is faster."""
    sync_speeds = [sync for sync, _ in family.by_data_set.values()]
    engine = engine_of(family, sum(sync_speeds) / len(sync_speeds))
    slow = run(engine, num_rounds=num_rounds)
    fast = run(replace(engine, backup="random"), num_rounds=num_rounds)
    length = expected_tokens(engine.accept, engine.lookahead)
    time = engine.jit_s() / max(engine.verify_s(), engine.tree_s())
    return critical_batch_size(slow.hit_rate, length, 1.0, time, fast_hit_rate=fast.hit_rate)


def draft_devices(family: Family, num_rounds: int, *, batch_size: int = 16) -> list[DraftDevices]:
    """Figure 6, right: more devices that draft, each with as many outcomes as one had."""
    sync_speeds = [sync for sync, _ in family.by_data_set.values()]
    one = engine_of(family, sum(sync_speeds) / len(sync_speeds))
    found: list[DraftDevices] = []
    for count in (1, 2, 4, 8):
        engine = replace(
            one,
            num_rows=batch_size,
            backup="random",
            fan_out=one.fan_out * count,
            num_drafts=count,
        )
        ran = run(engine, num_rounds=max(200, num_rounds // batch_size))
        found.append(
            DraftDevices(
                family=family.name,
                num_devices=count,
                over_plain=ran.over_plain,
                hit_rate=ran.hit_rate,
            )
        )
    return found
