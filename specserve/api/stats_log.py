# pyright: strict
"""One log line an interval while requests run, and none while nobody asks for anything.

With the words of vLLM's two lines where the meaning is the same: people paste them, and have
scripts that read them. What vLLM does not have follows.
"""

import asyncio
import logging

from specserve.api.figures import Counts, Figures, figures_between
from specserve.api.hub import Hub
from specserve.types import Load

log = logging.getLogger(__name__)

_FIRST_LOOK_S = 0.1  # between looks for the first report


async def log_figures(hub: Hub, interval_s: float) -> None:
    """Until the target is lost, or for ever; one report after another, `interval_s` apart."""
    while not hub.load.uptime_s:
        await asyncio.sleep(_FIRST_LOOK_S)
    before = hub.load
    while True:
        await asyncio.sleep(interval_s)
        if hub.lost.is_set():
            return
        now = hub.load
        if now.num_rounds != before.num_rounds or now.num_running or now.num_waiting:
            log.info("%s", line_of(before, now))
        before = now


def line_of(before: Load, now: Load) -> str:
    """What happened between two reports, in one line."""
    found = figures_between(Counts.of_report(before), Counts.of_report(now))
    used = (now.num_blocks - now.num_free_blocks) / max(1, now.num_blocks)
    words = [
        f"Avg prompt throughput: {found.prompt_tokens_per_s:.1f} tokens/s",
        f"Avg generation throughput: {found.generated_tokens_per_s:.1f} tokens/s",
        f"Running: {now.num_running} reqs",
        f"Waiting: {now.num_waiting} reqs",
        f"KV cache usage: {used:.1%}",
        f"Prefix cache hit rate: {found.prefix_hit_rate or 0:.1%}",
        *_drafting(found),
        f"Mode: {now.speculation_regime}",
    ]
    if now.num_draft_processes:
        words.append(f"Drafts attached: {now.num_drafts_attached} of {now.num_draft_processes}")
    return ", ".join(words)


def _drafting(found: Figures) -> list[str]:
    """What speculation did, if it did anything."""
    words: list[str] = []
    if found.accept_len is not None:
        rates = ", ".join(f"{rate:.3f}" for rate in found.accept_rates)
        words += [
            f"SpecDecoding metrics: Mean acceptance length: {found.accept_len:.2f}",
            f"Accepted throughput: {found.accepted_per_s:.2f} tokens/s",
            f"Drafted throughput: {found.drafted_per_s:.2f} tokens/s",
            f"Accepted: {found.num_accepted} tokens",
            f"Drafted: {found.num_drafted} tokens",
            f"Per-position acceptance rate: {rates}",
            f"Avg Draft acceptance rate: {found.accept_rate or 0:.1%}",
            f"Verify budget: {found.verify_budget or 0:.2f} tokens/round",
        ]
    if found.hit_rate is not None:
        words += [
            f"Cache hit rate: {found.hit_rate:.1%}",
            f"Wait for drafts: {1e3 * (found.wait_s or 0):.3f} ms/round",
        ]
    return words
