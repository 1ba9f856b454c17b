"""One running `1+1` for the tests of what strangers send."""

from collections.abc import Iterator

import pytest

from tests.conftest import left_behind
from tests.reliability.fuzz.campaign import Attacked, attacked_service


@pytest.fixture(scope="package")
def attacked() -> Iterator[Attacked]:
    """It ends well in the end, whatever it was sent."""
    with attacked_service() as made:
        yield made


@pytest.fixture(autouse=True)
def _no_litter() -> Iterator[None]:
    """Of each test, not of its file: the service goes on from file to file, and none may change."""
    with left_behind():
        yield
