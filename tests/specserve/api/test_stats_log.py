"""The line of figures: vLLM's words, figures of the interval, and silence without requests."""

import asyncio
import logging
import re

import msgspec
import pytest

from specserve.api.hub import Hub
from specserve.api.stats_log import line_of, log_figures
from specserve.transport.control.control import TargetControl
from specserve.types import Distribution, DraftReport, Load
from tests.specserve.api.scripted_target import ready

BEFORE = Load(
    num_blocks=10, num_free_blocks=10, num_rounds=100, num_prompt_tokens=1000,
    num_generated_tokens=500, uptime_s=50.0, num_drafts=90, num_drafted_tokens=400,
    num_accepted_tokens=100, num_accepted_per_position=[60, 40],
    speculation_regime="async", num_lookups=90, num_hits=45, num_decode_rounds=90, wait_s=1.0,
    verify_budget=Distribution([90], 400.0), num_draft_processes=1, num_drafts_attached=1,
    drafts=[DraftReport(is_attached=True, bytes_sent=10, bytes_received=20)],
)  # fmt: skip
AFTER = Load(
    num_running=2, num_waiting=1, num_blocks=10, num_free_blocks=4, num_rounds=130,
    num_prompt_tokens=1200, num_cached_tokens=50, num_generated_tokens=542, uptime_s=54.0,
    num_drafts=100, num_drafted_tokens=430, num_accepted_tokens=112,
    num_accepted_per_position=[67, 43, 2], speculation_regime="async", num_lookups=110,
    num_hits=60, num_decode_rounds=115, wait_s=1.05, verify_budget=Distribution([115], 425.0),
    num_draft_processes=1,
    drafts=[DraftReport(is_attached=False, bytes_sent=50, bytes_received=420)],
)  # fmt: skip
NUMBER = r"\d+\.\d+"
# As scripts look for what vLLM writes.
VLLM = re.compile(
    rf"Avg prompt throughput: (?P<prompt>{NUMBER}) tokens/s, "
    rf"Avg generation throughput: (?P<generation>{NUMBER}) tokens/s, "
    r"Running: (?P<running>\d+) reqs, Waiting: (?P<waiting>\d+) reqs, "
    rf"KV cache usage: (?P<cache>{NUMBER})%, Prefix cache hit rate: (?P<prefix>{NUMBER})%"
)
VLLM_DRAFTING = re.compile(
    rf"SpecDecoding metrics: Mean acceptance length: (?P<length>{NUMBER}), "
    rf"Accepted throughput: (?P<accepted_s>{NUMBER}) tokens/s, "
    rf"Drafted throughput: (?P<drafted_s>{NUMBER}) tokens/s, "
    r"Accepted: (?P<accepted>\d+) tokens, Drafted: (?P<drafted>\d+) tokens, "
    rf"Per-position acceptance rate: (?P<positions>{NUMBER}(?:, {NUMBER})*), "
    rf"Avg Draft acceptance rate: (?P<rate>{NUMBER})%"
)


def test_scripts_that_read_vllms_lines_read_ours():
    line = line_of(BEFORE, AFTER)
    found = VLLM.search(line)
    assert found
    assert found.groupdict() == {
        "prompt": "50.0", "generation": "10.5", "running": "2", "waiting": "1", "cache": "60.0",
        "prefix": "20.0",
    }  # fmt: skip
    found = VLLM_DRAFTING.search(line)
    assert found
    assert found.groupdict() == {
        "length": "2.20", "accepted_s": "3.00", "drafted_s": "7.50", "accepted": "12",
        "drafted": "30", "positions": "0.700, 0.300, 0.200", "rate": "40.0",
    }  # fmt: skip


def test_what_vllm_does_not_have_follows():
    line = line_of(BEFORE, AFTER)
    assert "\n" not in line
    assert line.endswith(
        ", Verify budget: 1.00 tokens/round, Cache hit rate: 75.0%, "
        "Wait for drafts: 2.000 ms/round, Mode: async, Drafts attached: 0 of 1"
    )


def test_plain_decoding_says_nothing_of_drafts():
    line = line_of(Load(uptime_s=1.0), Load(uptime_s=2.0, num_rounds=3, num_generated_tokens=3))
    assert VLLM.search(line)
    assert "3.0 tokens/s" in line
    assert line.endswith("Prefix cache hit rate: 0.0%, Mode: off")


@pytest.fixture
def told(tmp_path, caplog):
    """(loads): the lines of a hub whose target sends each of them, an interval apart."""

    async def tell(loads: list[Load]) -> list[str]:
        hub = Hub(tmp_path, max_requests=8, max_per_tenant=0, buffer_rounds=64, silence_s=60)
        target = TargetControl(tmp_path)
        running = asyncio.create_task(hub.run())
        target.announce(ready(400))
        await hub.ready
        telling = asyncio.create_task(log_figures(hub, 0.05))
        for load in loads:
            target.send(load)
            while hub.load != load:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.25)  # the first look, of every 0.1 s, and some intervals
        hub.target_lost("it was told to")
        async with asyncio.timeout(5):
            await telling
        running.cancel()
        await asyncio.wait([running])
        hub.close()
        target.close()
        return [each.getMessage() for each in caplog.records if each.name.endswith("stats_log")]

    with caplog.at_level(logging.INFO):
        yield lambda *loads: asyncio.run(tell(list(loads)))


def test_lines_come_while_requests_run_and_end_with_them(told):
    idle = msgspec.structs.replace(AFTER, num_running=0, num_waiting=0)
    assert told(idle) == []
    lines = told(idle, msgspec.structs.replace(AFTER, num_rounds=131), idle)
    assert len(lines) >= 3  # two intervals are over in between; then the count of rounds is another
    assert all("Avg generation throughput" in line for line in lines)


def test_requests_that_only_wait_are_told_of(told):
    """That nothing is done for them is what somebody has to see."""
    stuck = msgspec.structs.replace(AFTER, num_running=0, num_waiting=3)
    assert "Running: 0 reqs, Waiting: 3 reqs" in told(stuck)[0]


def test_one_round_between_two_lines_is_enough(told):
    idle = msgspec.structs.replace(AFTER, num_running=0, num_waiting=0)
    (line,) = told(idle, msgspec.structs.replace(idle, num_rounds=131, uptime_s=55.0))
    assert "Running: 0 reqs" in line
