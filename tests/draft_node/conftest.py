"""Fixtures of the draft node's tests."""

import pytest

from tests.draft_node.prespeculation.rounds import dspark, language_model
from tests.specserve.drafters.checkpoints import EAGLE3, make_drafter
from tests.specserve.drafters.conftest import target

__all__ = ["target"]


@pytest.fixture(params=["dspark", "eagle3", "language model"])
def drafter(request, target, tmp_path):
    if request.param == "dspark":
        return dspark(tmp_path / "draft", target)
    if request.param == "eagle3":
        return make_drafter(tmp_path / "draft", EAGLE3, target)
    return language_model(target)


@pytest.fixture
def dspark_drafter(target, tmp_path):
    return dspark(tmp_path / "draft", target)
