"""Two services for all cases, one a regime, which every case has to leave as it found them."""

from collections.abc import Iterator

import pytest

from tests.cases.apis import Service
from tests.cases.serving import FLAGS, assert_healthy, serving_all


@pytest.fixture(scope="package")
def _services() -> Iterator[dict[str, Service]]:
    with serving_all(FLAGS) as services:
        yield services


@pytest.fixture(scope="package")
def service(request: pytest.FixtureRequest, _services: dict[str, Service]) -> Service:
    """Of the regime that `case` has chosen."""
    return _services[request.param]


@pytest.fixture(autouse=True)
def _leaves_a_healthy_service(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "service" in request.fixturenames:
        assert_healthy(request.getfixturevalue("service"))
