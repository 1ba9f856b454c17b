import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_node import start
from draft_node.training.block_export import as_read, stored
from specserve.backends.choose import choose_backend
from specserve.backends.cpu.codegen.row_code import Storage
from specserve.backends.cpu.row_kernels import row_kernels
from specserve.drafters import colocated, draft_times
from specserve.drafters.colocated import describe, load_feature_spec, positions_of
from specserve.drafters.draft_times import DraftTimes
from specserve.drafters.load import (
    DEFAULT_HIDDEN_GAMMA,
    MOST_HIDDEN_TOKENS,
    USUAL_HIDDEN_TOKENS,
)
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.drafters.weights import TargetWeights
from specserve.errors import Unsupported
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from specserve.sampling.draft_sampler import Greedy
from specserve.settings.config import ModelConfig, ResolvedConfig, SpeculationConfig
from specserve.settings.drafter_source import EMBEDDED_DRAFTERS, locate_drafter
from specserve.settings.target_source import EMBEDDED_TARGET
from specserve.types import DraftTime
from tests.backends.chosen import BACKEND
from tests.scripted_time import ScriptedTime
from tests.specserve.drafters.checkpoints import (
    DSPARK,
    EAGLE3,
    SPECULATORS,
    SPECULATORS_EAGLE3,
    make_drafter,
    write_drafter,
)
from tests.specserve.models.checkpoints import QWEN3, load, write_checkpoint


@pytest.mark.parametrize("config", [DSPARK, EAGLE3, SPECULATORS_EAGLE3])
def test_the_projection_alone_is_that_of_the_drafter(target, tmp_path, config):
    drafter = make_drafter(tmp_path / "draft", config, target)
    model = load(target.folder)
    spec = load_feature_spec(
        str(tmp_path / "draft"), target=target.folder, model=model, backend=BACKEND
    )
    assert spec.layers == drafter.features.layers
    residuals = torch.randn(5, 32 * len(spec.layers))
    assert torch.equal(spec.project(residuals), drafter.features.project(residuals))


def test_drafters_that_read_token_ids_alone_want_no_features(target):
    model = load(target.folder)
    assert load_feature_spec("ngram", target=target.folder, model=model, backend=BACKEND) is None
    assert (
        load_feature_spec(str(target.folder), target=target.folder, model=model, backend=BACKEND)
        is None
    )


def test_what_does_not_fit_the_target_is_refused(target, tmp_path):
    write_drafter(tmp_path / "draft", DSPARK, vocab_size=65)
    with pytest.raises(Unsupported, match="vocab_size"):
        load_feature_spec(
            str(tmp_path / "draft"),
            target=target.folder,
            model=load(target.folder),
            backend=BACKEND,
        )


@pytest.mark.parametrize(("gamma", "num_tokens"), [(None, DEFAULT_HIDDEN_GAMMA), (4, 4)])
def test_a_language_model_in_a_draft_process_may_have_chains_longer_than_usual(
    target, gamma, num_tokens
):
    speculation = SpeculationConfig(drafter=str(target.folder), gamma=gamma)
    assert describe(speculation) == ("language model", num_tokens)
    assert DEFAULT_HIDDEN_GAMMA > MOST_HIDDEN_TOKENS > USUAL_HIDDEN_TOKENS


@pytest.mark.parametrize("config", [DSPARK, EAGLE3])
def test_every_drafter_says_how_many_positions_it_was_made_for(target, tmp_path, config):
    write_drafter(tmp_path / "draft", config, max_position_embeddings=16)
    wish = SpeculationConfig(mode="sync", drafter=str(tmp_path / "draft"))
    assert positions_of(wish) == 16
    sizes = {"num_context_tokens": 64, "max_positions": 64}
    colocated.load(wish, backend=BACKEND, target=target.folder, model=load(target.folder), **sizes)


def test_a_language_model_of_few_positions_drafts_as_far_as_it_goes(target, tmp_path):
    folder = write_checkpoint(tmp_path / "small", QWEN3, max_position_embeddings=16)
    wish = SpeculationConfig(mode="sync", drafter=str(folder))
    assert positions_of(wish) == 16
    assert positions_of(SpeculationConfig(drafter="ngram")) is None
    sizes = {"num_context_tokens": 64, "max_positions": 64}
    drafter = colocated.load(
        wish, backend=BACKEND, target=target.folder, model=load(target.folder), **sizes
    )
    drafter.extend(ContextUpdate([0], [0], [15], torch.arange(15), None))
    drafter.draft(DraftBatch([0], torch.tensor([1])), Greedy())


@pytest.mark.parametrize(("from_anchor", "gamma"), [(True, 4), (False, 3)])
def test_how_blocks_were_trained_may_be_written_into_the_checkpoint(
    target, tmp_path, from_anchor, gamma
):
    config = write_drafter(tmp_path / "draft", SPECULATORS) / "config.json"
    content = json.loads(config.read_text())
    del content["sample_from_anchor"], content["speculators_config"]
    config.write_text(json.dumps(content))
    wish = SpeculationConfig(mode="sync", drafter=str(tmp_path / "draft"))
    with pytest.raises(Unsupported, match="write sample_from_anchor into that file: true, or fal"):
        describe(wish)
    config.write_text(json.dumps(content | {"sample_from_anchor": from_anchor}))
    assert describe(wish) == ("dspark", gamma)
    sizes = {"num_context_tokens": 64, "max_positions": 64}
    drafter = colocated.load(
        wish, backend=BACKEND, target=target.folder, model=load(target.folder), **sizes
    )
    assert drafter.gamma == gamma


def in_bfloat16(name, folder):
    """An embedded drafter stored in 16 bits: products of 16 bits have to lose nothing."""
    folder.mkdir()
    shutil.copy(EMBEDDED_DRAFTERS / name / "config.json", folder)
    weights = as_read(load_file(EMBEDDED_DRAFTERS / name / "model.safetensors"))
    save_file(stored(weights), folder / "model.safetensors")
    return folder


def embedded(folder, bits):
    """The embedded target, and the drafter in `folder` beside it."""
    model = load_model(
        EMBEDDED_TARGET,
        dtype=torch.float32,
        backend=choose_backend(torch.device("cpu")),
        parallel=TensorParallel(),
        deterministic=True,
    )
    wish = SpeculationConfig(mode="sync", drafter=str(folder))
    speculation = locate_drafter(wish, EMBEDDED_TARGET)
    rooms = {"num_context_tokens": 64, "max_positions": 64}
    return model, colocated.load(
        speculation, backend=BACKEND, target=EMBEDDED_TARGET, model=model, **rooms, **bits
    )


@pytest.mark.parametrize("name", ["lm", "dspark"])
@pytest.mark.parametrize(
    ("bits", "storage"),
    [({}, Storage.INT8), ({"bits": 16}, Storage.DOTTED), ({"bits": 32}, None)],
)
def test_a_drafters_products_have_few_bits_and_its_targets_never_do(name, bits, storage, tmp_path):
    expected = storage or Storage.FLOAT32
    if row_kernels(expected) is None:
        pytest.skip("no such products here")
    model, drafter = embedded(in_bfloat16(name, tmp_path / name), bits)
    layers = drafter.model.layers if name == "lm" else drafter.backbone.layers
    assert {layer.qkv.kernels.storage for layer in layers} == {expected}
    kept = {layer.qkv.kernels.storage for layer in model.layers}
    assert {model.lm_head.kernels.storage, *kept} == {Storage.BFLOAT16}
    if name == "dspark" and storage is Storage.INT8:  # the target's head, but a copy of it
        assert drafter.backbone.lm_head.kernels.storage is Storage.INT8
    elif name == "dspark":
        assert drafter.backbone.lm_head is model.lm_head


@pytest.mark.parametrize("place", [colocated, start])
def test_a_drafter_is_warmed_up_wherever_it_runs(place, target, monkeypatch):
    warmed = []
    monkeypatch.setattr(place, "warm_up", lambda drafter, *_, **__: warmed.append(drafter))
    speculation = SpeculationConfig(mode="async", drafter=str(target.folder))
    if place is colocated:
        rooms = {"num_context_tokens": 64, "max_positions": 64}
        drafter = colocated.load(
            speculation, backend=BACKEND, target=target.folder, model=load(target.folder), **rooms
        )
    else:
        config = ResolvedConfig(
            model=ModelConfig(target=str(target.folder), dtype="float32", max_model_len=64),
            speculation=speculation,
            num_blocks=8,
        )
        weights = TargetWeights.of(target.folder)
        options = start._options(config, weights, torch.float32, BACKEND)
        drafter = start._load(config, weights, options)
    assert warmed == [drafter]


def test_a_drafter_beside_the_target_is_timed_by_rows(target):
    speculation = SpeculationConfig(mode="sync", drafter=str(target.folder))
    model = load(target.folder)
    rooms = {"num_context_tokens": 64, "max_positions": 64}
    drafter = colocated.load(
        speculation, backend=BACKEND, target=target.folder, model=model, **rooms
    )
    times = colocated.times_of(drafter, model=model, backend=BACKEND, max_rows=4, max_positions=64)
    assert [each.num_blocks for each in times.all] == [1, 4]
    assert times.go_by_token  # it is a language model
    assert 0 < times.seconds(1, 1) < times.seconds(1, 5)
    assert times.enter_s > 0
    assert drafter.context_len(-1) == 0  # nothing is left of the row that was timed


def test_a_drafter_that_was_timed_before_is_only_brought_to_its_pace(target, monkeypatch):
    """It takes twice as long as it did; a draft or two of two sizes tell."""
    clock = ScriptedTime()
    monkeypatch.setattr(draft_times, "time", clock)
    known = DraftTimes([DraftTime(1, 0.01, 0.02), DraftTime(4, 0.02, 0.03)], enter_s=0.004)
    speculation = SpeculationConfig(mode="sync", drafter=str(target.folder))
    model = load(target.folder)
    rooms = {"num_context_tokens": 64, "max_positions": 64}
    drafter = colocated.load(
        speculation, backend=BACKEND, target=target.folder, model=model, **rooms
    )
    draft, num_drafts = drafter.draft, []

    def slow(batch, sampler):
        clock.now_s += 2 * known.seconds(len(batch.rows), batch.most)
        num_drafts.append(len(batch.rows))
        return draft(batch, sampler)

    drafter.draft = slow
    limits = {"max_rows": 4, "max_positions": 64}
    times = colocated.times_of(drafter, model=model, backend=BACKEND, known=known, **limits)
    assert [(each.num_blocks, each.fixed_s, each.token_s) for each in times.all] == [
        (1, pytest.approx(0.02), pytest.approx(0.04)),
        (4, pytest.approx(0.04), pytest.approx(0.06)),
    ]
    assert times.enter_s == pytest.approx(0.008)  # nobody has measured it again
    assert len(num_drafts) == 4
    assert drafter.context_len(-1) == 0
