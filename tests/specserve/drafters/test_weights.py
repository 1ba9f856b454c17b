"""Weights that are no numbers are refused where they are read, by the name of their tensor."""

import pytest
import torch
from safetensors.torch import load_file

from specserve.drafters.load import load_drafter, load_features
from specserve.drafters.weights import refuse_non_finite
from specserve.errors import Unsupported
from tests.backends.chosen import BACKEND
from tests.specserve.drafters.checkpoints import (
    DFLASH,
    DSPARK,
    EAGLE3,
    GRU_HEAD,
    SPECULATORS,
    ZLAB,
    change_tensors,
    options,
    write_drafter,
    write_head,
)
from tests.specserve.models.checkpoints import QWEN3, write_checkpoint

CPU = torch.device("cpu")


def spoil(folder, name: str, value: float = float("nan")) -> None:
    """One weight of a tensor becomes `value`."""
    weight = load_file(folder / "model.safetensors")[name].clone()
    weight.view(-1)[weight.numel() // 2] = value
    change_tensors(folder, **{name: weight})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    ("config", "name"),
    [
        (DSPARK, "markov_head.markov_w2.weight"),
        (DSPARK, "confidence_head.proj.bias"),
        (DFLASH, "layers.1.mlp.down_proj.weight"),
        (ZLAB, "fc.weight"),
        (SPECULATORS, "embed_tokens.weight"),
        (EAGLE3, "layers.0.hidden_norm.weight"),
    ],
)
def test_a_drafter_with_a_weight_that_is_no_number_is_refused(
    config, name, value, target, tmp_path
):
    folder = write_drafter(tmp_path / "draft", config)
    spoil(folder, name, value)
    with pytest.raises(Unsupported, match=f"draft: tensor {name}: NaN or infinity"):
        load_drafter(folder, target, options())


def test_the_target_refuses_the_features_of_such_a_drafter(target, tmp_path):
    folder = write_drafter(tmp_path / "draft", DSPARK)
    spoil(folder, "fc.weight")
    with pytest.raises(Unsupported, match=r"tensor fc\.weight: NaN or infinity"):
        load_features(folder, target, dtype=torch.float32, backend=BACKEND)


def test_a_language_model_and_a_local_head_are_refused_likewise(target, tmp_path):
    folder = write_checkpoint(tmp_path / "small", QWEN3)
    name = next(n for n in load_file(folder / "model.safetensors") if "up_proj" in n)
    spoil(folder, name)
    with pytest.raises(Unsupported, match=f"small: tensor {name.removeprefix('model.')}: NaN"):
        load_drafter(folder, target, options())

    head = write_head(tmp_path / "head", GRU_HEAD)
    spoil(head, "rank_proj.weight")
    dflash = write_drafter(tmp_path / "dflash", DFLASH)
    with pytest.raises(Unsupported, match=r"head: tensor rank_proj\.weight: NaN"):
        load_drafter(dflash, target, options(local_head=head))


def test_a_weight_too_large_for_the_dtype_that_drafts_is_refused(tmp_path):
    weight = torch.tensor([1.0, 1e5])
    refuse_non_finite(tmp_path, "w", weight)
    refuse_non_finite(tmp_path, "w", torch.zeros(0))
    refuse_non_finite(tmp_path, "counts", torch.tensor([1, 2]))
    with pytest.raises(
        Unsupported, match="tensor w: NaN or infinity among its weights, as float16"
    ):
        refuse_non_finite(tmp_path, "w", weight.half())
