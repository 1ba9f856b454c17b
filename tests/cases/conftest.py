"""Two services for all cases, one a regime, which every case has to leave as it found them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.cases.apis import Service
from tests.cases.serving import FLAGS, assert_healthy, serving


@pytest.fixture(scope="session")
def _service_of() -> Iterator[Callable[[str], Service]]:
    """Starts what is asked for, once."""
    started: dict[str, Service] = {}
    with ExitStack() as stack:

        def service_of(regime: str) -> Service:
            if regime not in started:
                started[regime] = stack.enter_context(serving(*FLAGS[regime]))
            return started[regime]

        yield service_of


@pytest.fixture(scope="session")
def service(request: pytest.FixtureRequest, _service_of: Callable[[str], Service]) -> Service:
    """Of the regime that `case` has chosen."""
    return _service_of(request.param)


@pytest.fixture(autouse=True)
def _leaves_a_healthy_service(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "service" in request.fixturenames:
        assert_healthy(request.getfixturevalue("service"))
