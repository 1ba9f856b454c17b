"""Commands whose stdin or stdout is closed or full, each in a process of its own."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specserve.client import Client
from specserve.settings.target_source import EMBEDDED_TARGET

pytestmark = pytest.mark.slow

SPECSERVE = [sys.executable, "-m", "specserve"]
NOWHERE = ("--connect", "127.0.0.1:1")  # never asked: the stream is looked at first


def without(stream: str, *words: str) -> list[str]:
    """The command line with a stream closed as a shell closes it: "<&-", ">&-" or "2>&-"."""
    return ["sh", "-c", f'exec "$0" "$@" {stream}', *SPECSERVE, *words]


def ended(words: list[str]) -> tuple[int, str]:
    found = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    return found.returncode, found.stderr


@pytest.mark.parametrize(
    "words", [("generate", *NOWHERE, "a"), ("chat", *NOWHERE), ("info",), ("audit", *NOWHERE)]
)
def test_an_answer_without_a_stdout_is_refused_by_name(words):
    problem = "specserve: stdout: is closed; the answer is written there\n"
    assert ended(without(">&-", *words)) == (1, problem)


@pytest.mark.parametrize("words", [("generate", *NOWHERE, "-"), ("chat", *NOWHERE)])
def test_a_question_without_a_stdin_is_refused_by_name(words):
    problem = "specserve: stdin: is closed; what to ask is read from there\n"
    assert ended(without("<&-", *words)) == (1, problem)


def test_without_a_stderr_the_exit_code_is_the_same():
    assert ended(without("2>&-", "generate", *NOWHERE, "a")) == (1, "")
    assert ended(without("2>&-", "launch", "--port", "99999")) == (2, "")


def test_a_stdin_that_nobody_may_read_is_named():
    problem = "specserve: stdin: Bad file descriptor\n"
    assert ended(without("0>/dev/null", "generate", *NOWHERE, "-")) == (1, problem)
    assert ended(without("0>/dev/null", "chat", *NOWHERE))[0] == 1


@pytest.mark.parametrize("stream", ["2>/dev/full", "2>&-"])
def test_with_nowhere_to_complain_the_exit_code_is_the_same(stream):
    assert ended(without(stream, "launch", "--port", "99999")) == (2, "")
    assert ended(without(stream, "info", "--target", "/none"))[0] == 2


def test_what_an_alphabet_lacks_is_written_in_another_way(tmp_path):
    folder = tmp_path / "größe"
    folder.mkdir()
    shutil.copy(EMBEDDED_TARGET / "config.json", folder)
    for encoding, written in (("ascii", b"gr\\xf6\\xdfe"), ("utf-8", "größe".encode())):
        found = subprocess.run(
            [*SPECSERVE, "info", "--target", str(folder)],
            env={**os.environ, "PYTHONIOENCODING": encoding},
            capture_output=True,
            check=True,
            timeout=60,
        )
        assert written in found.stdout
        assert found.stderr == b""


def test_what_holds_the_place_of_a_closed_stream_is_there_for_children_too():
    program = (
        "from specserve.processes.standard_streams import prepare_streams as p; p(); "
        "import subprocess as s; "
        "s.run(['sh', '-c', 'test -e /proc/self/fd/0'], check=True)"
    )
    words = ["sh", "-c", 'exec "$0" "$@" <&-', sys.executable, "-c", program]
    assert ended(words) == (0, "")


@pytest.mark.parametrize(
    "words",
    [("info",), ("launch", "--target", "tiny", "--port", "0", "--device", "cpu"),
     ("--help",), ("--version",), ("info", "--help")],
)  # fmt: skip
def test_a_full_stdout_is_named(words):
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [*SPECSERVE, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (found.returncode, found.stderr) == (1, "specserve: stdout: No space left on device\n")


def test_a_launch_without_stdin_and_stdout_serves_and_logs_its_address(tmp_path):
    flags = ("--target", "tiny", "--device", "cpu", "--port", "0", "--oversubscribe")
    log = tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(without("<&- >&-", "launch", *flags), stderr=stderr)
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r"listening on (\S+)\n", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        with Client(found[1]) as client:
            assert len(client.generate("x", max_tokens=3).samples[0].token_ids) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in log.read_text()
