import json

import pytest

from specserve.drafters.dialect_eagle3 import default_layers
from specserve.drafters.dialects import read_draft_spec
from specserve.drafters.spec import (
    BlockSpec,
    Eagle3Spec,
    FeaturesNorm,
    LanguageModelSpec,
    Layout,
    LocalHeadSpec,
    MarkovKind,
)
from specserve.errors import Unsupported
from tests.golden import FIXTURES
from tests.specserve.drafters.checkpoints import (
    DECODER,
    DFLASH,
    DSPARK,
    EAGLE3,
    LOCAL_HEAD,
    SGLANG_EAGLE3,
    SPECFORGE,
    SPECULATORS,
    SPECULATORS_EAGLE3,
    ZLAB,
    write_config,
)
from tests.specserve.models.checkpoints import QWEN3


def read(tmp_path, config, **changes):
    return read_draft_spec(write_config(tmp_path / "any", config, **changes))


def nested(config, key, **changes):
    return {key: {**config[key], **changes}}


def eagle(**changes):
    return nested(SGLANG_EAGLE3, "eagle_config", **changes)


def test_dispatch_is_on_content(tmp_path):
    def kind(config, **changes):
        return type(read(tmp_path, config, **changes))

    assert kind(DSPARK) is kind(DFLASH) is kind(ZLAB) is kind(SPECULATORS) is BlockSpec
    assert kind(SPECFORGE) is BlockSpec
    assert kind(EAGLE3) is kind(SGLANG_EAGLE3) is kind(SPECULATORS_EAGLE3) is Eagle3Spec
    assert kind(QWEN3) is LanguageModelSpec
    assert kind(LOCAL_HEAD) is LocalHeadSpec


def test_dspark_is_read_as_published():
    spec = read_draft_spec(FIXTURES / "dspark_qwen3_gated_b4")
    assert (spec.layout, spec.gamma, spec.block_size) == (Layout.ANCHOR_FIRST, 4, 4)
    assert (spec.markov.kind, spec.markov.rank) == (MarkovKind.GATED, 8)
    assert spec.confidence.with_markov
    assert spec.feature_layers == (1, 3)
    assert spec.warnings == ()


def test_dflash_layouts_follow_their_dialects(tmp_path):
    deepspec, zlab = read(tmp_path, DFLASH), read(tmp_path, ZLAB)
    assert (deepspec.layout, deepspec.gamma) == (Layout.ANCHOR_FIRST, 4)
    assert (zlab.layout, zlab.gamma, zlab.embeddings_stored) == (Layout.FILL_IN, 4, False)
    assert deepspec.markov is deepspec.confidence is zlab.markov is None


@pytest.mark.parametrize(
    ("total", "count", "layers"),
    [(36, 5, (1, 9, 17, 25, 33)), (40, 5, (1, 10, 19, 28, 37)), (36, 1, (18,))],
)
def test_absent_zlab_layers_are_the_default_ones(tmp_path, total, count, layers):
    config = nested(ZLAB, "dflash_config", target_layer_ids=None)
    spec = read(tmp_path, ZLAB, **config, num_hidden_layers=count, num_target_layers=total)
    assert spec.feature_layers == layers


def test_zlab_layers_may_stand_at_the_top_level(tmp_path):
    config = nested(ZLAB, "dflash_config", target_layer_ids=None)
    assert read(tmp_path, ZLAB, **config, target_layer_ids=[0, 1]).feature_layers == (0, 1)


def test_eagle3_says_how_it_was_built(tmp_path):
    sglang, speculators = read(tmp_path, SGLANG_EAGLE3), read(tmp_path, SPECULATORS_EAGLE3)
    assert sglang.feature_layers == speculators.feature_layers == (-1, 0, 0)
    assert (sglang.gamma, sglang.longest, speculators.gamma) == (5, 16, 4)
    assert (sglang.draft_vocab_size, sglang.decoder.qk_norm) == (40, False)
    assert (sglang.norm_before_residual, sglang.feeds_normed) == (False, False)
    assert speculators.norm_before_residual
    assert speculators.feeds_normed
    assert speculators.features_norm is FeaturesNorm.APART
    plain = {"fc_norm": False, "norm_output": False, "norm_before_residual": False}
    spec = read(tmp_path, SPECULATORS_EAGLE3, **plain, norm_before_fc=True)
    assert spec.features_norm is FeaturesNorm.TOGETHER
    assert (spec.norm_before_residual, spec.feeds_normed) == (False, False)
    assert read(tmp_path, SGLANG_EAGLE3, draft_vocab_size=None).draft_vocab_size == 64
    assert read(tmp_path, SGLANG_EAGLE3, norm_output=True).feeds_normed


def test_eagle3_goes_by_several_names_and_says_nothing_by_null(tmp_path):
    usual = read(tmp_path, SGLANG_EAGLE3)
    for name in ("Eagle3LlamaForCausalLM", "LlamaForCausalLM"):
        assert read(tmp_path, SGLANG_EAGLE3, architectures=[name]) == usual
    # vLLM's key at the top level names inputs of layers; eagle_config, where it is, outputs.
    named = {"eagle_config": None, "eagle_aux_hidden_state_layer_ids": [0, 1, 1]}
    assert read(tmp_path, SGLANG_EAGLE3, **named) == usual
    folder = write_config(tmp_path / "null", SPECULATORS_EAGLE3)
    content = json.loads((folder / "config.json").read_text())
    content |= dict.fromkeys(("target_hidden_size", "norm_before_fc", "norm_output"))
    content["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = None
    (folder / "config.json").write_text(json.dumps(content))
    spec = read_draft_spec(folder)
    assert (spec.gamma, spec.feeds_normed) == (5, False)
    outside = nested(SPECULATORS_EAGLE3, "transformer_layer_config", dtype=None)
    spec = read(tmp_path, SPECULATORS_EAGLE3, **outside, dtype="bfloat16")
    assert spec.decoder.dtype == "bfloat16"


def test_eagle3_that_names_no_layers_leaves_them_to_the_target(tmp_path):
    assert read(tmp_path, SGLANG_EAGLE3, eagle_config=None).feature_layers == ()
    spec = read(tmp_path, SPECULATORS_EAGLE3, eagle_aux_hidden_state_layer_ids=None)
    assert spec.feature_layers == ()
    assert default_layers(32) == (1, 15, 28)  # as Llama-3.1-8B's


def test_zlab_block_size_may_be_nested(tmp_path):
    config = nested(ZLAB, "dflash_config", block_size=9)
    assert read(tmp_path, ZLAB, **config, block_size=None).gamma == 8


def test_speculators_layers_count_inputs_and_the_key_decides_the_layout(tmp_path):
    spec = read(tmp_path, SPECULATORS)
    assert spec.feature_layers == (-1, 0)
    assert (spec.layout, spec.gamma, spec.warnings) == (Layout.ANCHOR_FIRST, 4, ())
    methods = {"speculators_config": {"proposal_methods": [{"speculative_tokens": 3}]}}
    fill_in = read(tmp_path, SPECULATORS, sample_from_anchor=False, **methods)
    assert (fill_in.layout, fill_in.gamma, fill_in.warnings) == (Layout.FILL_IN, 3, ())
    old = read(tmp_path, SPECULATORS, sample_from_anchor=None, dspark_bonus_anchor=True, **methods)
    assert old.layout is Layout.FILL_IN


def test_a_layout_key_that_block_size_contradicts_is_followed_with_a_warning(tmp_path):
    spec = read(tmp_path, SPECULATORS, sample_from_anchor=False)
    assert spec.layout is Layout.FILL_IN
    assert "the key was followed" in spec.warnings[0]


@pytest.mark.parametrize(("drafted", "layout"), [(4, Layout.ANCHOR_FIRST), (3, Layout.FILL_IN)])
def test_a_missing_layout_key_is_inferred_with_a_warning(tmp_path, drafted, layout):
    methods = {"speculators_config": {"proposal_methods": [{"speculative_tokens": drafted}]}}
    spec = read(tmp_path, SPECULATORS, sample_from_anchor=None, **methods)
    assert spec.layout is layout
    other = str(layout is Layout.FILL_IN).lower()
    assert "sample_from_anchor is missing" in spec.warnings[0]
    assert f"write sample_from_anchor: {other} into it" in spec.warnings[0]
    said = read(tmp_path, SPECULATORS, sample_from_anchor=layout is Layout.FILL_IN, **methods)
    assert said.layout is not layout


def test_an_undecidable_layout_is_refused_until_somebody_writes_it_down(tmp_path):
    changes = {"sample_from_anchor": None, "speculators_config": None}
    with pytest.raises(Unsupported, match="write sample_from_anchor into that file: true, or fal"):
        read(tmp_path, SPECULATORS, **changes)
    spec = read(tmp_path, SPECULATORS, **changes | {"sample_from_anchor": True})
    assert (spec.layout, spec.warnings) == (Layout.ANCHOR_FIRST, ())


def test_the_last_target_layer_is_used_raw_with_a_warning(tmp_path):
    spec = read(tmp_path, DSPARK, target_layer_ids=[0, 1])
    assert "before the final norm" in spec.warnings[0]


@pytest.mark.parametrize(
    "field",
    [
        "block_size",
        "target_layer_ids",
        "mask_token_id",
        "num_hidden_layers",
        "num_target_layers",
        "num_anchors",
        "markov_rank",
        "markov_head_type",
        "enable_confidence_head",
        "confidence_head_with_markov",
        "rms_norm_eps",
    ],
)
def test_a_missing_required_key_is_named(tmp_path, field):
    with pytest.raises(Unsupported, match=field):
        read(tmp_path, DSPARK, **{field: None})


REFUSALS = [
    (DSPARK, {"markov_head_type": "tree"}, "'tree' is not one of vanilla, gated, rnn"),
    (DSPARK, {"target_layer_ids": [0, 2]}, "the target has no layer 2"),
    (DSPARK, {"target_layer_ids": [-2]}, "the target has no layer -2"),
    (DSPARK, {"target_layer_ids": []}, "target_layer_ids"),
    (DSPARK, {"mask_token_id": 64}, "outside the vocabulary"),
    (DSPARK, {"layer_types": ["sliding_attention"]}, "only full_attention"),
    (DSPARK, {"attention_bias": True}, "attention_bias"),
    (DSPARK, {"quantization_config": {"bits": 4}}, "quantised"),
    (DFLASH, {"enable_confidence_head": True, "confidence_head_with_markov": True}, "no Markov"),
    (DSPARK, {"architectures": ["DSparkDraftModel"]}, "projector_type: None is not 'dspark'"),
    (ZLAB, nested(ZLAB, "dflash_config", projector_type="domino"), "'domino' is another"),
    (ZLAB, nested(ZLAB, "dflash_config", selector_rank=256), "DFlash2"),
    (ZLAB, nested(ZLAB, "dflash_config", attention_sink_bias=True), "attention_sink_bias"),
    (ZLAB, nested(ZLAB, "dflash_config", mask_token_id=None), "mask_token_id is missing"),
    (ZLAB, {"architectures": ["DFlash2DraftModel"]}, "DFlash2"),
    (ZLAB, {"architectures": ["DominoDraftModel"]}, "Domino"),
    (ZLAB, {"block_size": 1}, "block_size"),
    (ZLAB, {"is_causal": True}, "is_causal"),
    (ZLAB, nested(ZLAB, "dflash_config", block_size=7), "block_size: 5, but dflash_config"),
    (ZLAB, {"target_layer_ids": [0, 1]}, "target_layer_ids"),
    (EAGLE3, {"target_layer_ids": [0, 1, 1]}, "target_layer_ids"),
    (EAGLE3, {"ttt_length": None}, "ttt_length"),
    (DECODER, {"architectures": ["X"], "dspark_block_size": 5}, "DeepSeek-V4"),
    (DECODER, {"architectures": ["MambaDraft"]}, "'MambaDraft' is not one of"),
    (DECODER, {"architectures": []}, "names no model"),
    (SPECULATORS, {"speculators_model_type": "mtp"}, "'mtp' is not one of dspark, dflash, eagle3"),
    (SGLANG_EAGLE3, {"num_hidden_layers": 2}, "num_hidden_layers: 2, only 1"),
    (SGLANG_EAGLE3, {"draft_vocab_size": 65}, "draft_vocab_size exceeds"),
    (SGLANG_EAGLE3, {"attention_bias": True}, "attention_bias"),
    (SGLANG_EAGLE3, eagle(use_aux_hidden_state=False), "eagle_config.use_aux_hidden_state"),
    (SGLANG_EAGLE3, eagle(use_last_layernorm=False), "eagle_config.use_last_layernorm"),
    (SGLANG_EAGLE3, eagle(use_mtp_layernorm=True), "eagle_config.use_mtp_layernorm"),
    (SGLANG_EAGLE3, eagle(parallel_draft_step=2), "eagle_config.parallel_draft_step"),
    (SGLANG_EAGLE3, eagle(eagle_aux_hidden_state_layer_ids=[-2, 0, 1]), "no layer -2"),
    (SPECULATORS_EAGLE3, {"norm_before_residual": None}, "norm_before_residual is missing"),
    (SPECULATORS_EAGLE3, {"norm_before_fc": True}, "exclude each other"),
    (SPECULATORS_EAGLE3, {"transformer_layer_config": None}, "transformer_layer_config"),
    (
        SPECULATORS_EAGLE3,
        nested(SPECULATORS_EAGLE3, "transformer_layer_config", model_type="gpt_oss"),
        "transformer_layer_config.model_type: 'gpt_oss'",
    ),
    (SPECULATORS, {"draft_vocab_size": 65}, "exceeds vocab_size"),
    (SPECULATORS, {"target_hidden_size": 64}, "target_hidden_size"),
    (SPECULATORS, nested(SPECULATORS, "transformer_layer_config", hc_mult=4), "hc_mult"),
    (LOCAL_HEAD, {"lm_head_mode": "other"}, "lm_head_mode"),
    (LOCAL_HEAD, {"pure_draft_prefix_len": 2}, "pure_draft_prefix_len"),
]


@pytest.mark.parametrize(("config", "changes", "reason"), REFUSALS)
def test_what_is_not_implemented_is_refused_with_the_reason(tmp_path, config, changes, reason):
    with pytest.raises(Unsupported, match=reason):
        read(tmp_path, config, **changes)


def test_gemma4_beyond_its_dense_layers_is_refused(tmp_path):
    config = json.loads((FIXTURES / "dspark_gemma4_b4_draftonly" / "config.json").read_bytes())
    assert read(tmp_path, config).embedding_scale == 32**0.5
    with pytest.raises(Unsupported, match="enable_moe_block"):
        read(tmp_path, config, enable_moe_block=True)
    with pytest.raises(Unsupported, match="hidden_size_per_layer_input"):
        read(tmp_path, config, hidden_size_per_layer_input=256)
