"""What a launch remarks on: what its reader could not tell from the settings."""

import pytest

from specserve.commands.remarks import ballast_remark
from specserve.config import ModelConfig, ResolvedConfig
from specserve.target_source import EMBEDDED_TARGET


def served(**model: object) -> ResolvedConfig:
    return ResolvedConfig(model=ModelConfig(target=str(EMBEDDED_TARGET), **model))


@pytest.mark.parametrize(
    ("ballast", "told"),
    [("60M", "12 layers of ballast, 55.0M parameters"), ("5.3M", "1 layer of ballast, 295.5k")],
)
def test_ballast_is_told_with_its_size(ballast, told):
    remark = ballast_remark(served(ballast=ballast)) or ""
    assert remark.startswith(f"the target carries {told}")
    assert remark.endswith("which change its cost and not its law")


@pytest.mark.parametrize("ballast", [None, "0"])
def test_without_ballast_nothing_is_said_of_it(ballast):
    assert ballast_remark(served(ballast=ballast)) is None
