"""What tests of the supervisor and its children share, and tests of commands."""

import io
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from specserve.cli import main
from tests.specserve.processes.supervised import Supervised


@pytest.fixture(params=["spawned", "forked"])
def supervise(request, tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    """`supervise(num_ranks, num_drafts, NAME=BEHAVIOUR)` starts one for one test.

    Its nodes are spawned, or forked by a forkserver: nobody else should notice which.
    """
    started: list[Supervised] = []
    usual = "stand_in_preload" if request.param == "forked" else ""

    def start(
        num_ranks: int = 2, num_drafts: int = 0, preload: str = usual, **behaviours: str
    ) -> Supervised:
        started.append(Supervised(tmp_path, num_ranks, num_drafts, behaviours, preload))
        return started[-1]

    yield start
    for supervised in started:
        supervised.process.kill()
        supervised.process.communicate()


@pytest.fixture
def nobody_handles_stops() -> Iterator[None]:
    """Whatever ran in this process before."""
    handlers = dict.fromkeys((signal.SIGTERM, signal.SIGHUP), signal.SIG_DFL)
    handlers |= {signal.SIGINT: signal.default_int_handler}
    before = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


class Ended(NamedTuple):
    """How one command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def specserve(capsys, monkeypatch) -> Callable[..., Ended]:
    """Run one command in this process, as the installed `specserve` would in its own."""

    def run(*words: str, stdin: str | bytes = "") -> Ended:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))
        try:
            returncode = main(words)
        except SystemExit as ended:  # argparse's way
            returncode = ended.code
        return Ended(returncode, *capsys.readouterr())

    return run


@pytest.fixture
def refused(specserve) -> Callable[..., str]:
    """The one line on stderr of a command that must exit with 2."""

    def run(*words: str, stdin: str | bytes = "") -> str:
        result = specserve(*words, stdin=stdin)
        assert (result.returncode, result.stdout) == (2, "")
        (line,) = result.stderr.splitlines()
        return line.removeprefix("specserve: ")

    return run
