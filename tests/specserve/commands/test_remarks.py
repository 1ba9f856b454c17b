"""What a launch remarks on: what its reader could not tell from the settings."""

import pytest

from specserve.commands.remarks import ballast_remark, context_remark
from specserve.config import Config, EngineConfig, ModelConfig, ResolvedConfig
from specserve.launch import resolve_here
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


def context_of(**model: object) -> str | None:
    wish = Config(engine=EngineConfig(num_blocks=2), model=ModelConfig(**model))
    return context_remark(wish, resolve_here(wish))


def test_a_pool_that_cuts_the_context_is_named():
    assert context_of() == (
        "model.max_model_len is 32 and not the model's 2048: "
        "engine.num_blocks 2, of 16 tokens each, hold no more"
    )


def test_a_context_that_was_asked_for_and_a_whole_one_are_no_surprise():
    assert context_of(max_model_len=32) is None
    wish = Config(engine=EngineConfig(num_blocks=128))
    assert context_remark(wish, resolve_here(wish)) is None
