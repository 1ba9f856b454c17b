"""What tests of the supervisor and its children share."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.specserve.supervised import Supervised


@pytest.fixture(params=["spawned", "forked"])
def supervise(request, tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    """`supervise(num_ranks, num_drafts, NAME=BEHAVIOUR)` starts one for one test.

    Its nodes are spawned, or forked by a zygote: nobody else should notice which.
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
