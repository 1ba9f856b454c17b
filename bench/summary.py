# pyright: strict
"""From measurements to the figures of the report: medians over repetitions, paired ratios."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from bench.comparison import Measurements, Plan, Triple
from bench.loops import LoopCount, count_loops
from bench.machine import Machine
from bench.records import RoundTimes
from bench.stats import Ratio, median, paired_ratio
from specserve.errors import InvalidField

_RowT = TypeVar("_RowT")

QUIET_SHARE = 0.05  # waiting for a core; repetitions above it count only for want of others
MIN_QUIET = 3
RATIO_GOAL = 1.0  # ahead of transformers
OVERHEAD_GOAL_PARAMS = 50_000_000  # for targets at least this large
OVERHEAD_GOAL = 1.10  # at batch 1, on a 60M target


class DecodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One batch size. `ratio_to_transformers` is of whole calls, prompts included."""

    batch_size: int
    temperature: float
    ratio_to_transformers: float
    ratio: Ratio
    decode_ratio: Ratio  # full-batch decode rates alone
    overhead: Ratio  # mean served round over mean bare forward, same contexts
    overhead_of_medians: Ratio  # median round over median forward: without the rare slow ones
    served_tokens_per_s: float
    transformers_tokens_per_s: float
    served_decode_tokens_per_s: float
    transformers_decode_tokens_per_s: float
    served_first_token_ms: float  # until every row has its first token
    transformers_first_token_ms: float
    round_ms: float
    forward_ms: float
    reported_round_ms: float  # by the service itself
    cpu_ratio: Ratio | None  # processor time of transformers over that of the target process
    cpu_us_per_token: dict[str, float]
    equal_token_share: float  # of rows, at temperature 0, up to the first difference
    num_repetitions: int  # that count here
    waited_share: float  # the largest among them
    num_disturbed: int  # that were left out


class PrefillRow(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt length at batch 1: time until the first token at the client."""

    prompt_len: int
    ratio_to_transformers: float
    ratio: Ratio
    overhead: Ratio  # over the bare forwards of the prompt
    served_first_token_ms: float
    transformers_first_token_ms: float
    forward_ms: float
    served_tokens_per_s: float
    transformers_tokens_per_s: float


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What was served."""

    name: str
    num_params: int  # with ballast
    ballast_params: int
    num_layers: int
    dtype: str
    deterministic: bool
    threads: int
    target_cores: tuple[int, ...]
    client_cores: tuple[int, ...]
    oversubscribed: bool
    allocator: str  # tuning of the C library's allocator, in all arms
    device: str = "cpu"


class Repetition(msgspec.Struct, frozen=True, kw_only=True):
    """The raw figures of one repetition."""

    batch_size: int
    temperature: float
    served_tokens_per_s: float
    transformers_tokens_per_s: float
    served_decode_tokens_per_s: float
    transformers_decode_tokens_per_s: float
    round_ms: float
    forward_ms: float
    waited_share: float


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """results.json. `rows` are greedy; `overhead` is that of the smallest batch, 1 unless asked."""

    rows: list[DecodeRow]
    overhead: float
    overhead_interval: tuple[float, float]
    ahead_of_transformers: bool
    overhead_goal: float
    rows_temperature_1: list[DecodeRow]
    prefill: list[PrefillRow]
    stages_us: dict[str, dict[str, float]]
    target: Target
    plan: Plan
    prompts: str  # what was asked, in words
    loops: LoopCount  # among the served greedy answers, each text once
    machine: Machine
    repetitions: list[Repetition]


def summarise(
    found: Measurements, plan: Plan, target: Target, machine: Machine, prompts: str = ""
) -> Results:
    """All figures of one run; `prompts` says what was asked."""
    greedy = [triple for triple in found.decode if triple.temperature == 0]
    sampled = [triple for triple in found.decode if triple.temperature > 0]
    rows = _by_key(greedy, lambda triple: triple.batch_size, decode_row)
    first = min(rows, key=lambda row: row.batch_size)
    return Results(
        rows=rows,
        overhead=first.overhead.value,
        overhead_interval=(first.overhead.low, first.overhead.high),
        ahead_of_transformers=all(row.ratio_to_transformers > RATIO_GOAL for row in rows),
        overhead_goal=OVERHEAD_GOAL,
        rows_temperature_1=_by_key(sampled, lambda triple: triple.batch_size, decode_row),
        prefill=_by_key(found.prefill, lambda triple: triple.prompt_lens[0], prefill_row),
        stages_us={str(size): _stages_us(times) for size, times in found.rounds.items()},
        target=target,
        plan=plan,
        prompts=prompts,
        loops=count_loops({tuple(row) for triple in greedy for row in triple.served.token_ids}),
        machine=machine,
        repetitions=[_repetition(triple) for triple in found.decode],
    )


def decode_row(triples: Sequence[Triple]) -> DecodeRow:
    """The figures of one batch size and temperature.

    Raises InvalidField if the answers were so short that rows never decoded side by side.
    """
    everything, triples = triples, quiet([triple for triple in triples if triple.is_side_by_side])
    if not triples:
        raise InvalidField("--tokens", "too few for rows of a batch to decode side by side")

    def medians(figure: Callable[[Triple], float]) -> float:
        return median([figure(triple) for triple in triples])

    def ratio(over: Callable[[Triple], float], under: Callable[[Triple], float]) -> Ratio:
        return paired_ratio([over(t) for t in triples], [under(t) for t in triples])

    whole = ratio(lambda t: t.served.tokens_per_s, lambda t: t.transformers.tokens_per_s)
    return DecodeRow(
        batch_size=triples[0].batch_size,
        temperature=triples[0].temperature,
        ratio_to_transformers=whole.value,
        ratio=whole,
        decode_ratio=ratio(
            lambda t: t.served.decode_tokens_per_s, lambda t: t.transformers.decode_tokens_per_s
        ),
        overhead=ratio(lambda t: t.served.round_s, _mean_forward_s),
        overhead_of_medians=ratio(
            lambda t: median(t.served.intervals_s), lambda t: median(t.bare.steps_s)
        ),
        served_tokens_per_s=medians(lambda t: t.served.tokens_per_s),
        transformers_tokens_per_s=medians(lambda t: t.transformers.tokens_per_s),
        served_decode_tokens_per_s=medians(lambda t: t.served.decode_tokens_per_s),
        transformers_decode_tokens_per_s=medians(lambda t: t.transformers.decode_tokens_per_s),
        served_first_token_ms=1e3 * medians(lambda t: t.served.first_token_s),
        transformers_first_token_ms=1e3 * medians(lambda t: t.transformers.first_token_s),
        round_ms=1e3 * medians(lambda t: t.served.round_s),
        forward_ms=1e3 * medians(_mean_forward_s),
        reported_round_ms=1e3 * medians(lambda t: t.reported_round_s),
        cpu_ratio=_cpu_ratio(triples),
        cpu_us_per_token=_cpu_us_per_token(triples),
        equal_token_share=_equal_token_share(triples),
        num_repetitions=len(triples),
        waited_share=max(triple.waited_share for triple in triples),
        num_disturbed=len(everything) - len(triples),
    )


def quiet(triples: Sequence[Triple]) -> Sequence[Triple]:
    """Those in which no arm waited long for its core, or else the few with the least waiting.

    The rule looks at what the rest of the machine did, never at a result.
    """
    ranked = sorted(triples, key=lambda triple: triple.waited_share)
    num_quiet = sum(triple.waited_share <= QUIET_SHARE for triple in ranked)
    return ranked[: max(num_quiet, MIN_QUIET)]


def prefill_row(triples: Sequence[Triple]) -> PrefillRow:
    """The figures of one prompt length."""
    triples = quiet(triples)
    served = [triple.served.first_token_s for triple in triples]
    transformers = [triple.transformers.first_token_s for triple in triples]
    bare = [triple.bare.prompt_s for triple in triples]
    length = triples[0].prompt_lens[0]
    ratio = paired_ratio(transformers, served)
    return PrefillRow(
        prompt_len=length,
        ratio_to_transformers=ratio.value,
        ratio=ratio,
        overhead=paired_ratio(served, bare),
        served_first_token_ms=1e3 * median(served),
        transformers_first_token_ms=1e3 * median(transformers),
        forward_ms=1e3 * median(bare),
        served_tokens_per_s=length / median(served),
        transformers_tokens_per_s=length / median(transformers),
    )


def _mean_forward_s(triple: Triple) -> float:
    return sum(triple.bare.steps_s) / len(triple.bare.steps_s)


def _by_key(
    triples: Sequence[Triple],
    key: Callable[[Triple], int],
    row: Callable[[Sequence[Triple]], _RowT],
) -> list[_RowT]:
    keys = sorted({key(triple) for triple in triples})
    return [row([triple for triple in triples if key(triple) == value]) for value in keys]


def _stages_us(times: RoundTimes) -> dict[str, float]:
    stages = {stage: 1e6 * seconds for stage, seconds in times.stages_s.items()}
    return stages | {"round": 1e6 * times.round_s}


def _cpu_ratio(triples: Sequence[Triple]) -> Ratio | None:
    """None where all calls were shorter than the scheduler's steps of counting."""
    pairs = [
        (triple.transformers.usage["transformers"].ran_s, triple.served.usage["target"].ran_s)
        for triple in triples
    ]
    counted = [pair for pair in pairs if min(pair) > 0]
    return paired_ratio(*zip(*counted, strict=True)) if counted else None


def _cpu_us_per_token(triples: Sequence[Triple]) -> dict[str, float]:
    num_tokens = sum(len(row) for triple in triples for row in triple.served.arrivals_s)
    roles = sorted({role for triple in triples for role in triple.served.usage})
    return {
        role: 1e6 * sum(triple.served.usage[role].ran_s for triple in triples) / num_tokens
        for role in roles
    }


def _equal_token_share(triples: Sequence[Triple]) -> float:
    """Share of tokens in which both arms agree, each row counted up to its first difference."""
    equal = total = 0
    for triple in triples:
        pairs = zip(triple.served.token_ids, triple.transformers.token_ids, strict=True)
        for served, transformers in pairs:
            same = [a == b for a, b in zip(served, transformers, strict=True)]
            equal += same.index(False) if False in same else len(same)
            total += len(same)
    return equal / total


def _repetition(triple: Triple) -> Repetition:
    return Repetition(
        batch_size=triple.batch_size,
        temperature=triple.temperature,
        served_tokens_per_s=triple.served.tokens_per_s,
        transformers_tokens_per_s=triple.transformers.tokens_per_s,
        served_decode_tokens_per_s=triple.served.decode_tokens_per_s,
        transformers_decode_tokens_per_s=triple.transformers.decode_tokens_per_s,
        round_ms=1e3 * triple.served.round_s,
        forward_ms=1e3 * _mean_forward_s(triple),
        waited_share=triple.waited_share,
    )
