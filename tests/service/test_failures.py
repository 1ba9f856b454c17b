"""A real service loses a process: open streams end with an error, the command with code 1.

Also how it ends when it is told to: exit code 0, nothing left behind (conftest looks). Every
service has streams over both APIs when it is struck; rows 9, 10 and 14 of
tests/reliability/rows.py.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from specserve.client import Client
from tests.reliability.apis import GRPC, HTTP, Answer, ask, places_of
from tests.reliability.loop import begin
from tests.reliability.measured import measured
from tests.reliability.scale import is_long
from tests.service.launched import Launched

HANG_S = 6.0


@pytest.fixture
def launch() -> Iterator[Callable[..., Launched]]:
    started: list[Launched] = []

    def start(*flags: str) -> Launched:
        started.append(Launched(*flags))
        return started[-1]

    yield start
    for launched in started:
        if launched.process.poll() is None:
            launched.process.kill()
        launched.process.wait()
        launched.process.stdout.close()


class Streams:
    """So many long streams over each API, all of which have begun."""

    def __init__(self, service: Launched, num: int = 1, max_tokens: int = 1900) -> None:
        self._places = places_of(service)
        self._wanted, self._begun = 2 * num, threading.Semaphore(0)
        self._ending = begin(self._run(num, max_tokens))
        for _ in range(self._wanted):
            assert self._begun.acquire(timeout=60)

    async def _run(self, num: int, max_tokens: int) -> dict[str, list[Answer]]:
        apis = [GRPC, HTTP] * num
        found = await asyncio.gather(*(self._stream(api, max_tokens) for api in apis))
        return {GRPC: found[::2], HTTP: found[1::2]}

    async def _stream(self, api: str, max_tokens: int) -> Answer:
        def begun(answer: Answer) -> bool:
            if len(answer.piece_s) == 1:
                self._begun.release()
            return True

        options = {"max_tokens": max_tokens, "ignore_eos": True, "temperature": 0.0}
        return await ask(api, self._places, "import", on_piece=begun, **options)

    def ends(self, timeout_s: float = 60) -> dict[str, list[Answer]]:
        """How each of them ended, by API."""
        return self._ending.result(timeout_s)


def assert_told(streams: Streams, text: str = "") -> None:
    """Every stream ended with an error that says why; none as if it had been finished."""
    for api, answers in streams.ends(30).items():
        told = [(answer.error, answer.finish_reason) for answer in answers]
        assert told == [("UNAVAILABLE", "")] * len(answers), (api, answers)
        assert [answer.message for answer in answers if text not in answer.message] == []


def keep_end(row: int, streams: Streams, struck_s: float, bar_s: float, **more: float) -> None:
    """From the blow until the last stream of an API heard of it."""
    for api, answers in streams.ends().items():
        with measured(row, api) as found:
            found.note(requests=len(answers), failed=len(answers), **more)
            found.none(wrong=[each for each in answers if each.error != "UNAVAILABLE"])
            found.at_most(bar_s, detection_s=max(each.ended_s for each in answers) - struck_s)


def seconds_to_serve(launch: Callable[..., Launched], *flags: str) -> float:
    """Of a service that is started anew."""
    begin_s = time.monotonic()
    launch(*flags).address()
    return time.monotonic() - begin_s


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_service_and_every_stream_with_an_error(launch, rank: int):
    flags = ("--topology", "2+0", "--oversubscribe")
    service = launch(*flags)
    streams = Streams(service, num=4)
    ranks = service.children("target_node")
    (victim,) = [pid for pid, command in ranks.items() if f"--rank {rank} " in command]
    killed_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    assert_told(streams, f"target rank {rank}")
    assert service.exit_code() == 1
    dead_s = time.monotonic() - killed_s
    assert dead_s < 15
    assert f"target rank {rank}" in service.output.splitlines()[-1]
    assert "Traceback" not in service.output
    again_s = seconds_to_serve(launch, *flags) if is_long() else 0.0
    keep_end(9, streams, killed_s, 5.0, all_dead_s=dead_s, recovery_s=dead_s + again_s)


@pytest.mark.slow
def test_a_hung_rank_ends_the_service_within_its_timeout(launch):
    hang = ("--set", f"engine.hang_timeout_s={HANG_S:g}")
    service = launch("--topology", "2+0", "--oversubscribe", *hang)
    streams = Streams(service)
    (victim,) = [p for p, c in service.children("target_node").items() if "--rank 1 " in c]
    stopped_s = time.monotonic()
    os.kill(victim, signal.SIGSTOP)
    assert service.exit_code(60) == 1
    assert_told(streams)
    assert "specserve: target rank 1 stopped by a signal: " in service.output.splitlines()[-1]
    keep_end(10, streams, stopped_s, HANG_S + 5)


@pytest.mark.slow
def test_a_hung_target_ends_the_service_within_its_timeout(launch):
    service = launch("--set", "engine.hang_timeout_s=3")
    streams = Streams(service)
    (victim,) = service.children("target_node")
    os.kill(victim, signal.SIGSTOP)
    assert service.exit_code(30) == 1
    assert_told(streams)
    silence = "silent for 3 s (engine.hang_timeout_s)"
    expected = f"specserve: target rank 0 stopped by a signal: the target was {silence}"
    assert service.output.splitlines()[-1] == f"{expected}; the service has stopped"
    assert service.output.count("target lost") == 1
    assert "API process" not in service.output


@pytest.mark.slow
def test_a_service_that_was_paused_as_a_whole_goes_on(launch):
    service = launch("--set", "engine.hang_timeout_s=3")
    address = service.address()
    pids = [*service.children("target_node"), *service.children("specserve.api")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(4)
    for pid in pids[::-1]:  # the API process first
        os.kill(pid, signal.SIGCONT)
    with Client(address) as client:
        assert client.generate("def", max_tokens=4, ignore_eos=True).usage.num_generated_tokens == 4
    service.process.send_signal(signal.SIGTERM)
    assert service.exit_code() == 0


# Which signals are which is tested of every pair in tests/specserve/processes/test_launch.py.
@pytest.mark.slow
def test_a_stop_signal_lets_running_requests_finish_and_exits_with_0(launch):
    service = launch()
    streams = Streams(service, max_tokens=200)
    service.process.send_signal(signal.SIGTERM)
    for answers in streams.ends().values():
        assert [(each.error, each.finish_reason) for each in answers] == [("", "length")]
    assert service.exit_code() == 0, service.output
    assert "1 request, sampled: expected tokens a second by mode: " in service.output
    for jargon in ("foreseeable", "greedy", "the median", "CacheStatistics"):
        assert jargon not in service.output


@pytest.mark.slow
def test_a_second_stop_signal_cuts_running_requests_and_says_so(launch):
    service = launch()
    streams = Streams(service)
    service.process.send_signal(signal.SIGINT)
    time.sleep(0.8)  # at once, it would be the same stop
    again_s = time.monotonic()
    service.process.send_signal(signal.SIGINT)
    assert service.exit_code() == 130, service.output
    dead_s = time.monotonic() - again_s
    assert_told(streams)
    keep_end(14, streams, again_s, 5.0, exit_after_a_second_signal_s=dead_s)


@pytest.mark.slow
def test_a_port_in_use_is_one_clear_line(launch, service: str):
    port = service.rpartition(":")[2]
    second = subprocess.run(
        [sys.executable, "-m", "specserve", "launch", "--target", "tiny", "--port", port],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert second.returncode == 2
    (line,) = (second.stdout + second.stderr).splitlines()
    assert port in line
