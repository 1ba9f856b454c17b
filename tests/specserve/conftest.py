"""What tests of the supervisor and its children share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.specserve.supervised import Supervised


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    """`supervise(num_ranks, num_drafts, NAME=BEHAVIOUR)` starts one for one test."""
    started: list[Supervised] = []

    def start(num_ranks: int = 2, num_drafts: int = 0, **behaviours: str) -> Supervised:
        started.append(Supervised(tmp_path, num_ranks, num_drafts, behaviours))
        return started[-1]

    yield start
    for supervised in started:
        supervised.process.kill()
        supervised.process.communicate()
