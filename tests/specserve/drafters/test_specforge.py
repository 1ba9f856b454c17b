"""SpecForge's DSpark against the same drafter in DeepSpec's format, and what is refused of it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specserve.drafters.dialects import read_draft_spec
from specserve.drafters.load import load_drafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.drafters.spec import Layout, MarkovKind
from specserve.errors import Unsupported
from specserve.sampling.draft_sampler import Greedy
from tests.specserve.drafters.checkpoints import (
    DSPARK,
    SPECFORGE,
    change_tensors,
    options,
    write_config,
    write_drafter,
    write_target,
)

HEADS = (
    "markov_rank",
    "markov_head_type",
    "enable_confidence_head",
    "confidence_head_with_markov",
)


def read(tmp_path: Path, config: dict, **changes):
    return read_draft_spec(write_config(tmp_path / "any", config, **changes))


def nested(**changes) -> dict:
    """SpecForge's config with keys of `dflash_config` changed, or removed where None."""
    merged = {**SPECFORGE["dflash_config"], **changes}
    return {**SPECFORGE, "dflash_config": {k: v for k, v in merged.items() if v is not None}}


def rewritten(config: dict) -> dict:
    """As for serving: the heads' keys at the top as well, DeepSpec's architecture, no code."""
    heads = {key: config["dflash_config"][key] for key in HEADS}
    return {**config, **heads, "architectures": ["Qwen3DSparkModel"], "auto_map": None}


def drafts(folder: Path, target, residuals: torch.Tensor):
    drafter = load_drafter(folder, target, options())
    features = drafter.features.project(residuals)
    drafter.extend(ContextUpdate([0], [0], [len(residuals)], torch.arange(9), features))
    batch = DraftBatch([0, 0, 0], torch.tensor([3, 17, 50]), keep_logits=True)
    return drafter.draft(batch, Greedy())


VARIANTS = [
    {},
    {"markov_head_type": "gated"},
    {"markov_head_type": "rnn", "confidence_head_with_markov": False},
    {"enable_confidence_head": False},
]


@pytest.mark.parametrize("heads", VARIANTS, ids=["vanilla", "gated", "rnn", "no confidence"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_drafts_are_those_of_the_same_drafter_in_deepspecs_format(heads, tied, tmp_path):
    target = write_target(tmp_path / "target", tie_word_embeddings=tied)
    theirs = load_file(target.folder / "model.safetensors")
    embedding = theirs["model.embed_tokens.weight"]
    deepspec = write_drafter(tmp_path / "deepspec", DSPARK, **heads)
    shared = {
        "embed_tokens.weight": embedding,
        "lm_head.weight": embedding.clone() if tied else theirs["lm_head.weight"],
    }
    change_tensors(deepspec, **shared)
    tensors = load_file(deepspec / "model.safetensors")
    own = {name: tensor for name, tensor in tensors.items() if name not in shared}
    residuals = torch.randn(9, 2 * 32, generator=torch.Generator().manual_seed(2))
    expected = drafts(deepspec, target, residuals)

    forms = {"trained": nested(**heads), "rewritten": rewritten(nested(**heads))}
    forms["before"] = {**forms["trained"], "architectures": ["DFlashDraftModel"]}
    for name, config in forms.items():
        folder = write_config(tmp_path / name, config)
        save_file(own, folder / "model.safetensors")
        found = drafts(folder, target, residuals)
        assert found.token_ids.shape == (3, 4)  # slot 0 drafts, too
        assert torch.equal(found.token_ids, expected.token_ids)
        torch.testing.assert_close(found.logits, expected.logits, atol=1e-6, rtol=0)
        assert (found.confidences is None) is (expected.confidences is None)
        if found.confidences is not None:
            torch.testing.assert_close(found.confidences, expected.confidences, atol=1e-6, rtol=0)


def test_keys_are_read_nested_or_at_the_top(tmp_path):
    spec = read(tmp_path, nested(markov_head_type="Gated"))
    assert (spec.dialect, spec.layout, spec.gamma) == ("SpecForge", Layout.ANCHOR_FIRST, 4)
    assert (spec.markov.kind, spec.markov.rank) == (MarkovKind.GATED, 6)
    assert (spec.feature_layers, spec.mask_token_id) == ((-1, 0), 63)
    assert not spec.embeddings_stored
    top = {"block_size": 7, "target_layer_ids": [0], "mask_token_id": 5, "markov_rank": 2}
    spec = read(
        tmp_path, nested(target_layer_ids=None, mask_token_id=None, markov_rank=None), **top
    )
    assert (spec.gamma, spec.feature_layers, spec.mask_token_id) == (7, (0,), 5)
    assert spec.markov.rank == 2


def test_absent_layers_are_the_default_ones(tmp_path):
    sizes = {"num_hidden_layers": 5, "num_target_layers": 36}
    spec = read(tmp_path, nested(target_layer_ids=None), **sizes)
    assert spec.feature_layers == (1, 9, 17, 25, 33)


REFUSALS = [
    ({"markov_rank": 0}, {}, "markov_rank: SpecForge's DSpark has a Markov head"),
    ({"markov_rank": None}, {}, "markov_rank: SpecForge's DSpark has a Markov head"),
    ({"markov_head_type": None}, {}, "markov_head_type: None is not one of"),
    ({"enable_confidence_head": None}, {}, "enable_confidence_head"),
    ({"mask_token_id": None}, {}, "mask_token_id"),
    ({"projector_type": "dflash"}, {}, "projector_type: 'dflash' is not 'dspark'"),
    ({"attention_mode": "mla"}, {}, "dflash_config.attention_mode"),
    ({"attention_modes": ["gqa", "kda"]}, {}, "dflash_config.attention_modes"),
    ({"causal": True}, {}, "dflash_config.causal"),
    ({"shift_label": False}, {}, "dflash_config.shift_label"),
    ({"final_logit_softcapping": 30.0}, {}, "dflash_config.final_logit_softcapping"),
    ({}, {"is_causal": True}, "is_causal"),
    ({}, {"model_type": "kimi"}, "model_type"),
    ({}, {"num_experts": 8}, "num_experts"),
    ({}, {"n_routed_experts": 8}, "n_routed_experts"),
    ({}, {"draft_vocab_size": 40}, "draft_vocab_size: 40 of 64"),
    ({}, {"dspark_config": {"markov_rank": 6}}, "dspark_config"),
    ({}, {"markov_rank": 8}, "markov_rank: 8 at the top level, 6 in dflash_config"),
    ({}, {"block_size": None}, "block_size"),
    ({}, {"num_target_layers": None}, "num_target_layers"),
    ({}, {"layer_types": ["sliding_attention"]}, "only full_attention"),
]


@pytest.mark.parametrize(("inside", "changes", "reason"), REFUSALS)
def test_what_is_not_clear_is_refused_with_the_reason(tmp_path, inside, changes, reason):
    with pytest.raises(Unsupported, match=reason):
        read(tmp_path, nested(**inside), **changes)
