"""A service in front of a scripted target that asks for keys, and the keys."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.specserve.api.conftest import Rig, rigs_in

ALICE, ALICE_TOO, BOB = "a1" * 12, "a2" * 12, "b0" * 12  # the first two of one tenant
NAMELESS, OTHER_NAMELESS = "c0" * 12, "c1" * 12
ADMIN = "d0" * 12
KEYS = f"""# two keys of one name are one tenant
alice {ALICE}
alice {ALICE_TOO}

bob   {BOB}
{NAMELESS}
{OTHER_NAMELESS}
admin {ADMIN}
"""


def key_file(folder: Path, text: str = KEYS) -> Path:
    """A file of keys as a launch accepts it."""
    path = folder / "keys"
    path.write_text(text)
    path.chmod(0o600)
    return path


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    """As gRPC sends it."""
    return (("authorization", f"Bearer {key}"),)


@pytest.fixture(scope="module")
def keyed(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One for all tests of a module, at most two requests of a tenant at once."""
    folder = tmp_path_factory.mktemp("keyed")
    door = {"api_key_file": str(key_file(folder)), "max_requests_per_key": 2}
    with rigs_in(model_folder, folder) as make:
        yield make(door=door)


@pytest.fixture
def rig_of_all(keyed: Rig) -> Iterator[Rig]:
    """The same in its first state, and with nothing left over after every test."""
    keyed.reset()
    yield keyed
    keyed.until(lambda: keyed.service.hub.num_in_flight == 0)
    keyed.until(lambda: keyed.target.num_live == 0)
