import logging
import shutil

import pytest
import torch
from safetensors.torch import load_file

from specserve.drafters.block_drafter import BlockDrafter
from specserve.drafters.eagle3 import Eagle3Drafter
from specserve.drafters.language_model import LanguageModelDrafter
from specserve.drafters.load import load_drafter, load_features
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.drafters.weights import TargetWeights
from specserve.errors import Unsupported
from specserve.noise import OnceKeys
from specserve.sampling.draft_sampler import Coupled, Greedy, Sampled
from tests.backends.chosen import BACKEND
from tests.golden_blocks import Recorder
from tests.specserve.drafters.checkpoints import (
    DFLASH,
    DSPARK,
    EAGLE3,
    LOCAL_HEAD,
    SGLANG_EAGLE3,
    SPECFORGE,
    SPECULATORS,
    SPECULATORS_EAGLE3,
    ZLAB,
    change_tensors,
    options,
    write_config,
    write_drafter,
    write_target,
)
from tests.specserve.models.checkpoints import QWEN3, load, write_checkpoint


@pytest.fixture
def untied(tmp_path):
    return write_target(tmp_path / "target", tie_word_embeddings=False)


def running(target):
    return TargetWeights(target.folder, target.spec, load(target.folder))


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (DSPARK, BlockDrafter),
        (DFLASH, BlockDrafter),
        (ZLAB, BlockDrafter),
        (SPECFORGE, BlockDrafter),
        (SPECULATORS, BlockDrafter),
        (EAGLE3, Eagle3Drafter),
        (SGLANG_EAGLE3, Eagle3Drafter),
        (SPECULATORS_EAGLE3, Eagle3Drafter),
    ],
)
def test_every_dialect_loads_and_drafts(config, kind, target, tmp_path):
    drafter = load_drafter(write_drafter(tmp_path / "draft", config), target, options())
    assert type(drafter) is kind
    features = drafter.features.project(torch.randn(6, 32 * len(drafter.features.layers)))
    assert features.shape == (6, drafter.feature_size)
    drafter.extend(ContextUpdate([0], [0], [6], torch.arange(6), features))
    speculation = drafter.draft(DraftBatch([0], torch.tensor([3])), Greedy())
    assert speculation.token_ids.shape == (1, drafter.gamma)


def test_the_targets_architectures_load_as_a_language_model(target, tmp_path):
    folder = write_checkpoint(tmp_path / "small", QWEN3, num_hidden_layers=1)
    drafter = load_drafter(folder, target, options(gamma=3))
    assert isinstance(drafter, LanguageModelDrafter)
    assert drafter.gamma == 3


def test_the_model_prefix_and_ignorable_tensors_are_accepted(target, tmp_path):
    folder = write_drafter(tmp_path / "draft", DSPARK)
    plain = load_drafter(folder, target, options())
    tensors = load_file(folder / "model.safetensors")
    renamed = {f"model.{name}": tensor for name, tensor in tensors.items()}
    extra = {"mask_embedding": torch.zeros(1, 32), "rotary_emb.inv_freq": torch.zeros(4)}
    change_tensors(folder, **dict.fromkeys(tensors), **renamed, **extra)
    prefixed = load_drafter(folder, target, options())
    hidden = torch.randn(3, 32)
    assert torch.equal(prefixed.backbone.logits(hidden), plain.backbone.logits(hidden))


def test_equal_embeddings_and_head_are_the_targets_own(untied, tmp_path):
    target = running(untied)
    theirs = load_file(untied.folder / "model.safetensors")
    folder = write_drafter(tmp_path / "draft", DSPARK)
    own = load_drafter(folder, target, options())
    assert own.backbone.embedding is not target.model.embedding
    assert own.backbone.lm_head is not target.model.lm_head

    equal = {
        "embed_tokens.weight": theirs["model.embed_tokens.weight"],
        "lm_head.weight": theirs["lm_head.weight"],
    }
    change_tensors(folder, **equal)
    shared = load_drafter(folder, target, options())
    assert shared.backbone.embedding is target.model.embedding
    assert shared.backbone.lm_head is target.model.lm_head
    apart = load_drafter(folder, untied, options())
    assert torch.equal(apart.backbone.embedding, target.model.embedding)
    hidden = torch.randn(3, 32)
    torch.testing.assert_close(apart.backbone.logits(hidden), shared.backbone.logits(hidden))


@pytest.mark.parametrize("tied", [True, False])
def test_absent_embeddings_are_read_from_the_target(tied, tmp_path):
    target = write_target(tmp_path / "target", tie_word_embeddings=tied)
    stored = load_file(target.folder / "model.safetensors")
    embedding = stored["model.embed_tokens.weight"]
    head = embedding if tied else stored["lm_head.weight"]
    folder = write_drafter(tmp_path / "draft", ZLAB)
    for known in (target, running(target)):
        backbone = load_drafter(folder, known, options()).backbone
        hidden = torch.randn(3, 32)
        torch.testing.assert_close(backbone.logits(hidden), hidden @ head.T, atol=1e-5, rtol=1e-5)
        assert torch.equal(backbone.embed(torch.tensor([5])), embedding[5:6])
    with pytest.raises(Unsupported, match="missing"):
        load_drafter(folder, None, options())


MALFORMED = [
    (DSPARK, {"surplus": torch.zeros(2)}, "unknown tensor surplus"),
    (DSPARK, {"norm.weight": None}, "norm.weight is missing"),
    (DSPARK, {"fc.weight": torch.zeros(32, 32)}, r"fc.weight has shape \[32, 32\]"),
    (DSPARK, {"layers.1.self_attn.q_norm.weight": None}, "q_norm.weight is missing"),
    (DSPARK, {"layers.2.mlp.up_proj.weight": torch.zeros(64, 32)}, "unknown tensor layers.2"),
    (DFLASH, {"markov_head.markov_w1.weight": torch.zeros(64, 6)}, "unknown tensor markov"),
    (ZLAB, {"prefix_gru.weight_ih_l0": torch.zeros(3, 3)}, "Domino"),
    (SPECFORGE, {"logit_head.markov_head.markov_w1.weight": torch.zeros(64, 6)}, "later SpecForge"),
    (SPECFORGE, {"confidence_head.proj.weight": torch.zeros(1, 32)}, "confidence_head.proj"),
    (DSPARK, {"mtp.0.fc.weight": torch.zeros(3, 3)}, "DeepSeek-V4"),
    (EAGLE3, {"midlayer.hidden_norm.weight": torch.zeros(32)}, "unknown tensor midlayer"),
    (SGLANG_EAGLE3, {"layers.0.mlp.up_proj.weight": torch.zeros(64, 32)}, "unknown tensor layers"),
    (SGLANG_EAGLE3, {"fc.bias": torch.zeros(32)}, "unknown tensor fc.bias"),
    (SGLANG_EAGLE3, {"d2t": None}, "d2t is missing"),
    (SGLANG_EAGLE3, {"lm_head.weight": None}, "lm_head.weight is missing"),
    (SGLANG_EAGLE3, {"lm_head.weight": torch.zeros(64, 32)}, "lm_head.weight has shape"),
    (SPECULATORS_EAGLE3, {"fc_norm.1.weight": None}, "fc_norm.1.weight is missing"),
    (SPECULATORS, {"lm_head.weight": None}, "lm_head.weight is missing"),
    (DSPARK, {"midlayer.hidden_norm.weight": torch.zeros(32)}, "config.json does not call it"),
    (EAGLE3, {"layers.0.self_attn.k_proj.weight": torch.zeros(32, 32)}, "k_proj"),
    (SPECULATORS, {"d2t": None}, "d2t is missing"),
    (SPECULATORS, {"d2t": torch.zeros(40)}, "d2t has dtype F32, not one of I64"),
    (SPECULATORS, {"d2t": torch.full((40,), 30)}, "not offsets to distinct target ids"),
    (SPECULATORS, {"d2t": -torch.arange(40)}, "not offsets to distinct target ids"),
    (SPECULATORS, {"d2t": torch.zeros(40, dtype=torch.int64)}, "t2d contradicts d2t"),
    (SPECULATORS, {"norm.weight": torch.zeros(32, dtype=torch.int64)}, "dtype I64"),
]


@pytest.mark.parametrize(("config", "changes", "reason"), MALFORMED)
def test_a_malformed_checkpoint_is_refused_by_tensor(config, changes, reason, target, tmp_path):
    folder = write_drafter(tmp_path / "draft", config)
    change_tensors(folder, **changes)
    with pytest.raises(Unsupported, match=reason):
        load_drafter(folder, target, options())


@pytest.mark.parametrize(
    ("config", "changes", "reason"),
    [
        (DSPARK, {"num_target_layers": 3}, "num_target_layers: 3, the target has 2"),
        (DSPARK, {"hidden_size": 64}, "hidden_size: 64, the target has 32"),
        (DSPARK, {"vocab_size": 80}, "vocab_size: 80, the target has 64"),
        (EAGLE3, {"num_target_layers": 3}, "num_target_layers"),
        (SGLANG_EAGLE3, {"eagle_config": None}, "do not exist in a target of 2 layers"),
        (SGLANG_EAGLE3, {"target_hidden_size": 64}, "hidden_size: 64, the target has 32"),
        (SPECULATORS_EAGLE3, {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, "no layer 2"),
        (SPECULATORS, {"aux_hidden_state_layer_ids": [3]}, "the target has no layer 2"),
        (QWEN3, {"vocab_size": 80}, "vocab_size"),
    ],
)
def test_a_drafter_of_another_target_is_refused(config, changes, reason, target, tmp_path):
    folder = write_config(tmp_path / "draft", config, **changes)
    with pytest.raises(Unsupported, match=reason):
        load_drafter(folder, target, options())


@pytest.mark.parametrize(
    ("config", "field"), [(DSPARK, "block_size"), (ZLAB, "block_size"), (EAGLE3, "ttt_length")]
)
def test_a_block_beyond_all_use_is_refused_before_memory_is_taken_for_it(
    config, field, target, tmp_path
):
    folder = write_drafter(tmp_path / "draft", config, **{field: 65})
    for loading in (
        lambda: load_drafter(folder, target, options()),
        lambda: load_drafter(folder, None, options()),
        lambda: load_features(folder, target, dtype=torch.float32, backend=BACKEND),
    ):
        with pytest.raises(Unsupported, match=f"{field}: 65, the limit is 64"):
            loading()
    write_drafter(tmp_path / "longest", config, **{field: 64})
    assert load_drafter(tmp_path / "longest", target, options()).gamma >= 63


def test_warnings_of_the_dialect_are_logged(target, tmp_path, caplog):
    folder = write_drafter(tmp_path / "draft", DSPARK, target_layer_ids=[1])
    with caplog.at_level(logging.WARNING):
        load_drafter(folder, target, options())
    assert "before the final norm" in caplog.text


def test_pickled_weights_are_never_read(target, tmp_path):
    folder = write_config(tmp_path / "draft", DSPARK)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(Unsupported, match="pickled"):
        load_drafter(folder, target, options())


@pytest.mark.parametrize("config", [LOCAL_HEAD, None], ids=["config", "no config"])
def test_a_published_local_head_is_refused_for_its_pickle_with_what_to_do(config, target, tmp_path):
    head = tmp_path / "head"
    head.mkdir()
    if config is not None:
        write_config(head, config)
    (head / "local_head.pt").write_bytes(b"PK")
    (head / "loss_mask_unigram.pt").write_bytes(b"PK")
    drafter = write_drafter(tmp_path / "draft", DFLASH)
    reason = r"local_head.pt and 1 more\), which are never read .* convert them to safetensors"
    for loading in (
        lambda: load_drafter(head, target, options()),
        lambda: load_drafter(drafter, target, options(local_head=head)),
    ):
        with pytest.raises(Unsupported, match=reason):
            loading()


def test_a_local_head_is_no_drafter_and_fits_no_dspark(target, tmp_path):
    head = write_config(tmp_path / "head", LOCAL_HEAD)
    with pytest.raises(Unsupported, match="drafts nothing alone"):
        load_drafter(head, target, options())
    folder = write_drafter(tmp_path / "draft", DSPARK)
    with pytest.raises(Unsupported, match="can only be added to a DFlash"):
        load_drafter(folder, target, options(local_head=head))


def test_query_and_key_norms_are_told_by_the_tensors(target, tmp_path):
    """z-lab's Llama drafters have them, others' need not."""
    folder = write_drafter(tmp_path / "draft", ZLAB)
    stored = load_file(folder / "model.safetensors")
    norms = [name for name in stored if "q_norm" in name or "k_norm" in name]
    change_tensors(folder, **dict.fromkeys(norms))
    drafter = load_drafter(folder, target, options())
    assert not drafter.backbone.spec.decoder.qk_norm
    drafter.extend(ContextUpdate([0], [0], [6], torch.arange(6), torch.randn(6, 32)))
    weight = stored["layers.1.self_attn.k_proj.weight"]
    c = torch.randn(1, 32)
    keys, _ = drafter.backbone.context_entries(c, torch.tensor([0]))
    expected = (c @ weight.T).view(4, 8)
    torch.testing.assert_close(keys[0, 4:], expected, atol=1e-5, rtol=1e-5)


def test_a_reduced_vocabulary_drafts_target_ids_under_every_method(target, tmp_path):
    folder = write_drafter(tmp_path / "draft", SPECULATORS)
    drafter = load_drafter(folder, target, options())
    listed = set(load_file(folder / "model.safetensors")["t2d"].nonzero().flatten().tolist())
    drafter.extend(ContextUpdate([0], [0], [6], torch.arange(6), torch.randn(6, 32)))
    batch = DraftBatch([0] * 8, torch.arange(8))
    ones, zeros = torch.ones(8), torch.zeros(8, dtype=torch.int64)
    keys = OnceKeys.build([4] * 8, [0] * 8, [0] * 8, range(8), [0] * 8)
    for sampler in (Greedy(), Sampled(ones, keys, 99), Coupled(ones, zeros, zeros)):
        speculation = drafter.draft(batch, sampler)
        assert set(speculation.token_ids.flatten().tolist()) <= listed
        if speculation.draft_probs is not None:
            assert bool(speculation.draft_probs.sound(64).all())
            assert speculation.draft_probs.ids.shape == (8 * 4, 40)


def test_loading_runs_no_code_of_the_checkpoint(target, tmp_path):
    folder = write_drafter(tmp_path / "draft", ZLAB, auto_map={"AutoModel": "evil.Model"})
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    load_drafter(shutil.copytree(folder, tmp_path / "copy"), target, options())


@pytest.mark.parametrize("config", [DSPARK, ZLAB, SPECULATORS, EAGLE3, SGLANG_EAGLE3])
def test_features_load_without_the_rest_of_the_drafter(config, target, tmp_path):
    folder = write_drafter(tmp_path / "draft", config)
    dtype = torch.float32
    features = load_features(folder, target, dtype=dtype, backend=BACKEND)
    whole = load_drafter(folder, target, options()).features
    residuals = torch.randn(5, 32 * len(features.layers))
    assert features.layers == whole.layers
    assert torch.equal(features.project(residuals), whole.project(residuals))


def test_a_language_model_needs_no_features_but_all_positions(target, tmp_path):
    folder = write_checkpoint(tmp_path / "small", QWEN3, max_position_embeddings=64)
    dtype = torch.float32
    assert load_features(folder, target, dtype=dtype, backend=BACKEND) is None
    with pytest.raises(Unsupported, match="rows may have 128 positions"):
        load_drafter(folder, target, options())
    drafter = load_drafter(folder, target, options(max_positions=64))
    drafter.extend(ContextUpdate([0], [0], [62], torch.arange(62), None))
    drafter.draft(DraftBatch([0], torch.tensor([1])), Greedy())  # runs past the last position


def test_positions_that_a_language_model_claims_and_nobody_uses_cost_nothing(target, tmp_path):
    folder = write_checkpoint(tmp_path / "small", QWEN3, max_position_embeddings=10**12)
    drafter = load_drafter(folder, target, options(max_positions=64))
    assert drafter.model.num_positions == 64 + drafter.gamma
    drafter.extend(ContextUpdate([0], [0], [63], torch.arange(63), None))
    drafter.draft(DraftBatch([0], torch.tensor([1])), Greedy())


@pytest.mark.parametrize("config", [DSPARK, ZLAB, SPECULATORS, EAGLE3, SGLANG_EAGLE3])
def test_bfloat16_drafters_stay_close_to_float32(config, target, tmp_path):
    folder = write_drafter(tmp_path / "draft", config)
    logits, token_ids, residuals = [], torch.arange(20), None
    for dtype in (torch.float32, torch.bfloat16):
        drafter = load_drafter(folder, target, options(dtype=dtype))
        if residuals is None:
            residuals = torch.randn(20, 32 * len(drafter.features.layers))
        features = drafter.features.project(residuals.to(dtype))
        drafter.extend(ContextUpdate([0], [0], [20], token_ids, features))
        recorder = Recorder(torch.tensor([3, 9, 9, 2, 1]))
        speculation = drafter.draft(DraftBatch([0], torch.tensor([3])), recorder)
        if speculation.confidences is not None:
            assert speculation.confidences.dtype == torch.float32
        assert recorder.logits.dtype == torch.float32
        logits.append(recorder.logits)
    spread = logits[0].std()
    assert (logits[0] - logits[1]).abs().max() < 0.1 * spread
    assert not torch.equal(*logits)


@pytest.mark.parametrize("config", [DSPARK, EAGLE3])
def test_blocks_may_run_past_the_last_position(config, target, tmp_path):
    folder = write_drafter(tmp_path / "draft", config, max_position_embeddings=16)
    drafter = load_drafter(folder, target, options(max_positions=32))
    drafter.extend(ContextUpdate([0], [0], [31], torch.arange(31), torch.randn(31, 32)))
    drafter.draft(DraftBatch([0], torch.tensor([1])), Greedy())
