# pyright: strict
"""The tables and sentences of the report."""

from collections.abc import Sequence

from bench.peers.summary import Goal, Results, Row
from bench.stats import Ratio
from bench.tables import Table

TITLE = "# The same model file through specserve and through others"
_NOTE = (
    "tok/s: of all requests together, from their sending to the last token, prompts included. "
    "First token: mean over requests. Plain over this: plain decoding of specserve in bfloat16 "
    "over the arm, median over passes with a 95 % bootstrap interval; below 1 the arm is faster. "
    "Same text: characters before the first difference from that arm. Others: how much of a core "
    "everything but server and client used meanwhile, median."
)


def verdict(results: Results) -> str:
    """One paragraph."""
    said = [_goal(goal) for goal in results.goals]
    if not said:
        said = [
            "No goal can be judged: specserve plain, and a peer with 16-bit weights, are needed"
        ]
    names = {f"{absent.arm.peer} {absent.arm.mode}" for absent in results.absent}
    absent = f" Absent: {', '.join(sorted(names))}." if names else ""
    stopped = "" if results.is_complete else " Stopped before its end."
    return f"{'; '.join(said)}.{absent}{stopped}"


def _goal(goal: Goal) -> str:
    place = f"{goal.threads} core{'s'[: goal.threads > 1]}, {goal.num_requests} at once"
    return (
        f"{place}: {_ratio(goal.ratio)} times {goal.against} (goal {goal.goal:g}: {goal.verdict})"
    )


def conditions(results: Results) -> str:
    """What was compared, and on what."""
    plan = results.plan
    precisions = "; ".join(f"{name}: {what}" for name, what in results.precisions.items())
    versions = "; ".join(
        f"{peer}: {', '.join(f'{name} {version}' for name, version in found.items())}"
        for peer, found in results.versions.items()
    )
    lines = [
        f"- {results.prompts}.",
        f"- Target: {results.model}. Weights as they lie in memory: {precisions}.",
        f"- {plan.num_passes} passes, {plan.num_tokens} tokens of every answer, greedy, end "
        "of text ignored, chat prompts as token ids, no prefix cache. Arms are alive together and "
        "asked in turn, the order rotating.",
        "- A server and all its processes have the named cores; the client has the others, where "
        f"there are any. specserve drafts with {results.drafter}.",
        f"- Peers: {versions or 'none'}.",
        f"- {results.machine.line}.",
        f"- `{results.command}`",
    ]
    return "\n".join(lines)


def tables(results: Results) -> list[Table]:
    """One for each number of cores and requests, and who is absent."""
    places = dict.fromkeys((row.arm.threads, row.num_requests) for row in results.rows)
    found = [
        _table(place, [r for r in results.rows if (r.arm.threads, r.num_requests) == place])
        for place in places
    ]
    if results.absent:
        header = ("engine", "decoding", "weights", "cores", "why")
        rows = [
            (a.arm.peer, a.arm.mode, a.arm.weights, a.arm.threads, a.reason) for a in results.absent
        ]
        found.append(Table("Absent", header, rows))
    return found


def _table(place: tuple[int, int], rows: Sequence[Row]) -> Table:
    threads, num_requests = place
    header = (
        "engine", "decoding", "weights", "tok/s", "first token ms", "plain over this",
        "same text", "passes", "others",
    )  # fmt: skip
    body = [
        (
            row.arm.peer, row.arm.mode, row.arm.weights, f"{row.tokens_per_s:.1f}",
            f"{row.first_token_ms:.0f}", _ratio(row.plain_over_this), _share(row.same_text_share),
            row.num_passes, _share(row.foreign_share),
        )
        for row in rows
    ]  # fmt: skip
    cores = "one core" if threads == 1 else f"{threads} cores"
    requests = "one request" if num_requests == 1 else f"{num_requests} requests at once"
    return Table(f"{cores}, {requests}".capitalize(), header, body, note=_NOTE)


def _ratio(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
