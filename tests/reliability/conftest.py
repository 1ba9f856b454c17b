"""Services here are shared by a module, and their draft processes come and go meanwhile."""

from collections.abc import Iterator

import pytest

from tests.conftest import left_behind


@pytest.fixture(scope="module", autouse=True)
def _no_litter() -> Iterator[None]:
    """A module that leaves a process or shared memory behind fails."""
    with left_behind():
        yield
