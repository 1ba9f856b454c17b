"""results.json, report.md and plots of one run of `bench.engine`."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.breakdown import STAGES
from bench.loops import loops_line
from bench.plots import draw
from bench.stats import Ratio
from bench.summary import OVERHEAD_GOAL, OVERHEAD_GOAL_PARAMS, DecodeRow, Results

RESULTS_FILE, REPORT_FILE = "results.json", "report.md"


def write_report(results: Results, out: Path) -> Path:
    """Write everything below `out`, which is made if need be; returns the path of report.md."""
    out.mkdir(parents=True, exist_ok=True)
    encoded = msgspec.json.format(msgspec.json.encode(results), indent=1)
    (out / RESULTS_FILE).write_bytes(encoded + b"\n")
    plots = draw(results, out)
    report = out / REPORT_FILE
    report.write_text(render(results, [path.name for path in plots]), encoding="utf-8")
    return report


def render(results: Results, plots: Sequence[str] = ()) -> str:
    """The report as Markdown."""
    parts = [
        "# Engine: served against transformers and against the bare model",
        _verdict(results),
        _conditions(results),
        "## Decode, greedy\n\n" + _decode_table(results.rows),
    ]
    if results.rows_temperature_1:
        parts.append("## Decode, temperature 1\n\n" + _decode_table(results.rows_temperature_1))
    parts.append("## Engine overhead\n\n" + _overhead_table(results.rows))
    if results.prefill:
        parts.append("## Prefill, batch 1\n\n" + _prefill_table(results))
    parts.append("## Stages of a decode round\n\n" + _stage_table(results))
    parts.append("## Processor time per emitted token\n\n" + _cpu_table(results.rows))
    parts += [f"![{name}]({name})" for name in plots]
    return "\n\n".join(parts) + "\n"


def _verdict(results: Results) -> str:
    low, high = results.overhead_interval
    ahead = "ahead" if results.ahead_of_transformers else "**not ahead**"
    size = results.rows[0].batch_size
    met = "met" if results.overhead <= OVERHEAD_GOAL else "**missed**"
    if results.target.num_params < OVERHEAD_GOAL_PARAMS:
        met = "not for a target as small as this"
    ratios = ", ".join(
        f"{row.ratio_to_transformers:.2f} at {row.batch_size}" for row in results.rows
    )
    return (
        f"Tokens per second over transformers by batch size: {ratios} ({ahead} everywhere is the "
        f"goal). Overhead at batch {size}: {results.overhead:.3f} [{low:.3f}, {high:.3f}] "
        f"(goal {OVERHEAD_GOAL:.2f} on a 60M target; {met})."
    )


def _conditions(results: Results) -> str:
    target, plan = results.target, results.plan
    ballast = (
        f"of which **{target.ballast_params / 1e6:.1f}M are ballast** (layers that cost and change "
        "nothing; both arms compute them)"
        if target.ballast_params
        else "no ballast"
    )
    lines = [
        f"- Target: {target.name}, {target.num_params / 1e6:.1f}M parameters, {ballast}; "
        f"{target.num_layers} layers, {target.device}, {target.dtype}, "
        f"deterministic: {target.deterministic}.",
        f"- {results.machine.line}.",
        f"- Every arm computes on core(s) {_cores(target.target_cores)} with {target.threads} "
        f"thread(s). API process and client run on core(s) {_cores(target.client_cores)}: "
        "the service uses a core that transformers has no use for."
        + (" **Oversubscribed: figures mean little.**" if target.oversubscribed else ""),
        f"- Allocator in all arms: {target.allocator}.",
        f"- {results.prompts}. {loops_line(results.loops)}",
        f"- Prompts of mixed lengths, the last {plan.max_prompt_len} tokens of each, "
        f"{plan.num_tokens} new tokens each, end of text ignored; transformers pads on the left "
        f"with a mask. {plan.num_repetitions} greedy repetitions, arms interleaved and rotated, "
        "warm-up dropped. Medians; ratios are medians of paired repetitions with 95 % bootstrap "
        "intervals.",
    ]
    return "\n".join(lines)


def _cores(cores: Sequence[int]) -> str:
    return ",".join(map(str, cores))


def _decode_table(rows: Sequence[DecodeRow]) -> str:
    header = (
        "batch", "tok/s served", "tok/s transformers", "ratio", "decode tok/s served",
        "decode tok/s transformers", "decode ratio", "first token ms, served / transformers",
        "cpu time ratio", "equal tokens", "repetitions",
    )  # fmt: skip
    body = [
        (
            row.batch_size, f"{row.served_tokens_per_s:.1f}",
            f"{row.transformers_tokens_per_s:.1f}", _ratio(row.ratio),
            f"{row.served_decode_tokens_per_s:.1f}",
            f"{row.transformers_decode_tokens_per_s:.1f}", _ratio(row.decode_ratio),
            f"{row.served_first_token_ms:.1f} / {row.transformers_first_token_ms:.1f}",
            _ratio(row.cpu_ratio),
            f"{row.equal_token_share:.1%}" if row.temperature == 0 else "different noise",
            f"{row.num_repetitions} (waited {row.waited_share:.0%}; {row.num_disturbed} left out)",
        )
        for row in rows
    ]  # fmt: skip
    return _table(header, body)


def _overhead_table(rows: Sequence[DecodeRow]) -> str:
    header = ("batch", "round ms", "bare forward ms", "overhead", "of medians", "own report ms")
    body = [
        (
            row.batch_size, f"{row.round_ms:.2f}", f"{row.forward_ms:.2f}", _ratio(row.overhead),
            _ratio(row.overhead_of_medians), f"{row.reported_round_ms:.2f}",
        )
        for row in rows
    ]  # fmt: skip
    note = (
        "Round: time between two tokens of a row at the client while all rows decode. "
        "Bare forward: model and head of the same batch and contexts, laid out beforehand."
    )
    return f"{_table(header, body)}\n\n{note}"


def _prefill_table(results: Results) -> str:
    header = (
        "prompt tokens", "first token ms, served", "transformers", "bare forward ms",
        "prompt tok/s served", "transformers", "ratio", "overhead",
    )  # fmt: skip
    body = [
        (
            row.prompt_len, f"{row.served_first_token_ms:.1f}",
            f"{row.transformers_first_token_ms:.1f}", f"{row.forward_ms:.1f}",
            f"{row.served_tokens_per_s:.0f}", f"{row.transformers_tokens_per_s:.0f}",
            _ratio(row.ratio), _ratio(row.overhead),
        )
        for row in results.prefill
    ]  # fmt: skip
    return _table(header, body)


def _stage_table(results: Results) -> str:
    sizes = list(results.stages_us)
    body = [
        (stage, *(f"{results.stages_us[size][stage]:.0f}" for size in sizes))
        for stage in (*STAGES, "round")
    ]
    note = (
        "Median microseconds, from the node's own loop in one process with a timer on each stage "
        "(not from the served run). model + head is the bare forward."
    )
    return f"{_table(('stage', *(f'batch {size}' for size in sizes)), body)}\n\n{note}"


def _cpu_table(rows: Sequence[DecodeRow]) -> str:
    roles = sorted({role for row in rows for role in row.cpu_us_per_token})
    body = [
        (row.batch_size, *(f"{row.cpu_us_per_token.get(role, 0):.0f}" for role in roles))
        for row in rows
    ]
    note = "Microseconds, prompts included. API and client share a core and run beside the target."
    return f"{_table(('batch', *roles), body)}\n\n{note}"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "too short"
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def _table(header: Sequence[object], body: Sequence[Sequence[object]]) -> str:
    rows = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)
