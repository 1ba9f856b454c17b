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
    "token, prompts included. Own tok/s: less the time in which the target was ready and had no "
    "core, which is the work of others. Target, API, client: processor time of that process for a "
    "token, in us; the client parses what it gets, JSON or messages."
)


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """results.json. Ratios are of tokens a second, by passes; `is_same_text` has to be true.

    `own`: without the time in which others had the target's core.
    """

    summary: dict[str, float]
    http_over_grpc: Ratio
    http_over_grpc_own: Ratio
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
    http, grpc = ([one.call.tokens_per_s for one in of(measurements, api)] for api in (HTTP, GRPC))
    return paired_ratio(http, grpc)


def own_over_grpc(measurements: Sequence[Measurement]) -> Ratio:
    """The same without the time in which others had the target's core."""
    http, grpc = ([one.own_tokens_per_s for one in of(measurements, api)] for api in (HTTP, GRPC))
    return paired_ratio(http, grpc)


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


def verdict_of(ratio: Ratio, own: Ratio) -> str:
    """On the ratio that others' work disturbs less; the plain one stands beside it."""
    found = f"HTTP over gRPC: {_shown(own)} (goal {GOAL}): {against(GOAL, own.value, own.high)}"
    return f"{found}; with the time in which others had the core {_shown(ratio)}"


def _shown(ratio: Ratio) -> str:
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def table(results: Results) -> Table:
    """A row an API."""
    rows = [_row(api, of(results.measurements, api)) for api in APIS]
    header = (
        "API", "tok/s", "own tok/s", "first token ms", "target us", "API us", "client us", "passes",
    )  # fmt: skip
    return Table(f"{results.num_streams} streams", header, rows, note=_NOTE)


def _row(api: str, calls: Sequence[Measurement]) -> tuple[object, ...]:
    def us(name: str) -> str:
        return f"{1e6 * median([getattr(one, name) / one.num_tokens for one in calls]):.0f}"

    return (
        api,
        f"{median([one.call.tokens_per_s for one in calls]):.1f}",
        f"{median([one.own_tokens_per_s for one in calls]):.1f}",
        f"{1e3 * median([one.call.first_token_s for one in calls]):.0f}",
        us("target_ran_s"),
        us("api_ran_s"),
        us("client_ran_s"),
        len(calls),
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
