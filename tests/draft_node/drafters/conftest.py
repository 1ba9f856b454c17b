import pytest

from tests.draft_node.drafters.checkpoints import write_target


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    """The folder of a small random target and its spec."""
    return write_target(tmp_path_factory.mktemp("target"))
