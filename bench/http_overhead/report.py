# pyright: strict
"""From calls to figures, and to the text of a report."""

from collections.abc import Sequence

import msgspec

from bench.bootstrap import against
from bench.http_overhead.asking import APIS, GRPC, HTTP, Measurement
from bench.machine import Machine
from bench.stats import Ratio, median, paired_ratio
from bench.tables import Table

GOAL = 0.97  # of gRPC's throughput
_NOTE = (
    "Medians over passes. tok/s: tokens of all streams over the time from sending them to the last "
    "token, prompts included. API, client: processor time of that process for a token, in us; the "
    "client parses what it gets, JSON or messages. Others: what everything else on the machine "
    "used of a core meanwhile."
)


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """results.json. `http_over_grpc`: tokens a second, by passes; `is_same_text` has to be true."""

    summary: dict[str, float]
    http_over_grpc: Ratio
    verdict: str
    is_same_text: bool
    model: str
    prompts: str  # in words
    num_streams: int
    num_tokens: int
    command: str
    machine: Machine
    measurements: list[Measurement]


def over_grpc(measurements: Sequence[Measurement]) -> Ratio:
    """Throughput over HTTP against that over gRPC in the same pass."""
    http, grpc = (of(measurements, api) for api in (HTTP, GRPC))
    return paired_ratio(
        [one.call.tokens_per_s for one in http], [one.call.tokens_per_s for one in grpc]
    )


def of(measurements: Sequence[Measurement], api: str) -> list[Measurement]:
    """Calls of one API by passes."""
    chosen = [one for one in measurements if one.api == api]
    return sorted(chosen, key=lambda one: one.pass_number)


def is_same_text(measurements: Sequence[Measurement]) -> bool:
    """Whether both APIs sent the same characters in every pass."""
    texts = [
        [[answer.text for answer in one.call.answers] for one in of(measurements, api)]
        for api in APIS
    ]
    return texts[0] == texts[1]


def verdict_of(ratio: Ratio) -> str:
    found = f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
    return f"HTTP over gRPC: {found} (goal {GOAL}): {against(GOAL, ratio.value, ratio.high)}"


def table(results: Results) -> Table:
    """A row an API."""
    rows = [_row(api, of(results.measurements, api)) for api in APIS]
    header = ("API", "tok/s", "first token ms", "API us", "client us", "passes", "others")
    return Table(f"{results.num_streams} streams", header, rows, note=_NOTE)


def _row(api: str, calls: Sequence[Measurement]) -> tuple[object, ...]:
    num_tokens = [sum(answer.num_tokens for answer in one.call.answers) for one in calls]
    api_us = [1e6 * one.api_ran_s / n for one, n in zip(calls, num_tokens, strict=True)]
    client_us = [1e6 * one.client_ran_s / n for one, n in zip(calls, num_tokens, strict=True)]
    return (
        api,
        f"{median([one.call.tokens_per_s for one in calls]):.1f}",
        f"{1e3 * median([one.call.first_token_s for one in calls]):.0f}",
        f"{median(api_us):.0f}",
        f"{median(client_us):.0f}",
        len(calls),
        f"{median([one.foreign_share for one in calls]):.0%}",
    )


def heading(results: Results) -> list[str]:
    """What stands above the table."""
    same = "Both send the same text." if results.is_same_text else "**Texts differ: a defect.**"
    asked = f"{results.num_streams} streams of {results.num_tokens} tokens each"
    return [
        "# HTTP beside gRPC",
        f"**{results.verdict}**",
        f"{results.model}; {asked}; {results.prompts}. {same}",
        f"`{results.command}`, {results.machine.line}",
    ]
