"""`specserve top` before a real gRPC service: frames, pipes, a terminal, a service that goes."""

import asyncio
import dataclasses
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress

import msgspec
import pytest
from rich.console import Console

from specserve.client import Client
from specserve.commands.top_frame import Snapshot, frame
from specserve.types import Distribution, DraftReport, Load, PositionCalibration
from tests.specserve.api.conftest import make_rig, model_folder  # noqa: F401 - fixtures

COMMAND = (sys.executable, "-m", "specserve", "top")
BEFORE = Load(num_blocks=10, num_free_blocks=10, uptime_s=10.0, num_draft_processes=2)
AFTER = Load(
    num_blocks=10, num_free_blocks=4, num_waiting=3, num_prompt_tokens=40, num_cached_tokens=10,
    num_generated_tokens=100, round_s=0.002, uptime_s=12.0, num_drafts=10, num_drafted_tokens=40,
    num_accepted_tokens=15, num_accepted_per_position=[9, 6], num_draft_processes=2,
    num_drafts_attached=1, speculation_regime="async", num_lookups=20, num_hits=15,
    num_prepared_blocks=60, num_decode_rounds=16, wait_s=0.08, num_misses={"skip": 5},
    step_time_error=0.07, verify_budget=Distribution([16], 40.0),
    calibration=[PositionCalibration(10, 9, 8.0, 0.125), PositionCalibration(9, 6, 7.2, 0.25)],
    drafts=[
        DraftReport(is_attached=True, bytes_sent=3000, bytes_received=500, state="attached"),
        DraftReport(is_attached=False),
    ],
)  # fmt: skip


def words_of(shown: object) -> str:
    """Without the spaces that fill columns."""
    console = Console(width=120, color_system=None)
    with console.capture() as captured:
        console.print(shown)
    return re.sub(" +", " ", captured.get())


@pytest.fixture
def drafting(make_rig):  # noqa: F811
    """A service that speculates, and a client of it."""
    rig = make_rig(num_drafts=2)

    async def announce() -> None:
        hub = rig.service.hub
        announced = msgspec.structs.replace(hub.ready.result(), speculation="auto")
        hub.ready = asyncio.get_running_loop().create_future()
        hub.ready.set_result(announced)

    rig.call(announce())
    with Client(rig.address) as client:
        yield rig, client


def told(rig, client: Client, load: Load) -> Snapshot:
    """What the service says once its target has reported this."""
    rig.target.load = load
    rig.until(lambda: rig.service.hub.load.uptime_s == load.uptime_s)
    return Snapshot.of(client, "HERE:1")


def test_a_frame_has_the_figures_of_its_interval(drafting):
    rig, client = drafting
    before, now = (told(rig, client, load) for load in (BEFORE, AFTER))
    text = words_of(frame(before, now))
    assert re.match(r"scripted at HERE:1, topology 1\+0, up 00:00:\d\d: degraded\n", text)
    for figure in (
        "tokens/s out 50.0", "tokens/s in 20.0", "waiting 3", "KV cache 60.0% of 10 blocks",
        "prefix hits 20.0%", "decode round 2.00 ms", "mode async (auto)", "acceptance length 2.50",
        "acceptance rate 37.5%", "hit rate 75.0%", "verify length 4.00 a row",
        "verify budget 2.50 a round", "fan-out 3.00", "wait for drafts 5.00 ms a round",
        "predicted times 7.0% off", "misses so far skip 5",
        "accepted, of all blocks now 0.90 0.60", "accepted, of those reached 0.90 0.67",
        "mean confidence 0.80 0.80", "calibration error 0.12 0.25",
        "api degraded", "target 0 idle", "draft 0 attached 1.5 k 250", "draft 1 away 0 0",
    ):  # fmt: skip
        assert figure in text, (figure, text)


def test_a_target_that_works_and_one_that_says_nothing_are_told_apart(drafting):
    rig, client = drafting
    now = told(rig, client, AFTER)
    for load, word in (
        (msgspec.structs.replace(now.load, num_running=1, report_age_s=0.25), "busy"),
        (msgspec.structs.replace(now.load, num_running=1, report_age_s=2.5), "silent for 2.5 s"),
    ):
        assert f"target 0 {word}" in words_of(frame(now, dataclasses.replace(now, load=load)))


def test_positions_that_nothing_was_judged_of_have_no_column(drafting):
    rig, client = drafting
    unknown = PositionCalibration(0, 0, 0.0, 0.0)
    load = msgspec.structs.replace(AFTER, calibration=[*AFTER.calibration, unknown, unknown])
    now = told(rig, client, load)
    assert "mean confidence 0.80 0.80 \n" in words_of(frame(now, now))


def test_an_interval_without_requests_has_no_rates_of_drafts(drafting):
    rig, client = drafting
    now = told(rig, client, AFTER)
    text = words_of(frame(now, now))
    assert "tokens/s out 0.0" in text
    for name in ("acceptance length", "acceptance rate", "hit rate", "fan-out"):
        assert f"{name} - " in text or f"{name} -\n" in text, name
    assert "mean confidence 0.80 0.80" in text  # since the start


def test_plain_decoding_shows_no_speculation(make_rig):  # noqa: F811
    rig = make_rig()
    with Client(rig.address) as client:
        now = Snapshot.of(client, "HERE:1")
    text = words_of(frame(now, now))
    assert "tokens/s out" in text
    assert "target 0 " in text
    assert "acceptance" not in text
    assert "draft" not in text


def test_once_prints_one_frame_without_escapes(make_rig, specserve):  # noqa: F811
    rig = make_rig()
    result = specserve("top", "--connect", rig.address, "--interval", "0.1", "--once")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("tokens/s out") == 1
    assert "\x1b" not in result.stdout


def test_a_pipe_gets_frame_after_frame_until_the_service_goes(make_rig):  # noqa: F811
    rig = make_rig()
    words = [*COMMAND, "--connect", rig.address, "--interval", "0.2"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stderr
        for _ in range(2):
            while "tokens/s out" not in process.stdout.readline():
                pass
        rig.call(rig.server._server.stop(0))
        _, complaint = process.communicate(timeout=20)
    assert process.returncode == 1
    assert complaint.count("\n") == 1, complaint
    line = complaint
    assert line.startswith(f"specserve: the service at {rig.address} has gone: ")


def test_a_terminal_is_refreshed_in_place_and_given_back(make_rig):  # noqa: F811
    rig = make_rig()
    ours, theirs = pty.openpty()
    words = [*COMMAND, "--connect", rig.address, "--interval", "0.1"]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    shown, end_s = b"", time.monotonic() + 20
    while shown.count(b"tokens/s out") < 3 and time.monotonic() < end_s:
        shown += os.read(ours, 65536)
    process.send_signal(signal.SIGINT)
    with suppress(OSError):  # raised once it has ended and everything was read
        while more := os.read(ours, 65536):
            shown += more
    os.close(ours)
    assert process.wait(20) == 0
    assert shown.count(b"\x1b[?1049h") == shown.count(b"\x1b[?1049l") == 1  # the other screen
    assert b"Traceback" not in shown


def test_where_nobody_answers_it_says_so(specserve):
    result = specserve("top", "--connect", "127.0.0.1:9", "--once")
    assert result.returncode == 1
    assert result.stderr.startswith("specserve: --connect: no service answers at 127.0.0.1:9; ")


@pytest.mark.parametrize("word", ["0", "nan", "soon", "1e9"])
def test_an_interval_is_a_number_of_seconds(refused, word):
    problem = f"is {word!r}; it must be 0.1 to 3600 seconds (see specserve top --help)"
    assert refused("top", "--interval", word) == f"argument --interval: {problem}"
