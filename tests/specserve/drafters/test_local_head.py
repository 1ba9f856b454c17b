"""Local heads on a real DFlash, against the formula over the tensors as stored."""

import pytest
import torch
from safetensors.torch import load_file

from specserve.drafters.dialects import read_draft_spec
from specserve.drafters.load import load_drafter
from specserve.drafters.local_head import (
    GruHead,
    LocalHeadOptions,
    LocalMarkovHead,
    load_local_head,
    log_prior,
)
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.drafters.spec import LocalHeadKind
from specserve.errors import Unsupported
from tests.backends.chosen import BACKEND
from tests.golden_blocks import Recorder
from tests.specserve.drafters.checkpoints import (
    DFLASH,
    ZLAB,
    change_tensors,
    options,
    write_drafter,
    write_head,
)
from tests.specserve.drafters.checkpoints import (
    GRU_HEAD as GRU,
)

MARKOV = {"embedding_weight": (64, 5), "lm_head_weight": (64, 5)}


def gru_logits(w, embedding, path, activation):
    """Local logits after each token of `path`: [len(path), V], gates in torch's order."""
    state, rows = torch.zeros(12), []
    for token in path:
        ir, iz, i_n = (w["prefix_gru.weight_ih_l0"] @ embedding[token]).chunk(3)
        hr, hz, hn = (w["prefix_gru.weight_hh_l0"] @ state).chunk(3)
        r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
        state = (1 - z) * (i_n + r * hn).tanh() + z * state
        rows.append(activation(w["rank_proj.weight"] @ state))
    return torch.stack(rows)


@pytest.mark.parametrize("config", [DFLASH, ZLAB])
@pytest.mark.parametrize("mode", ["low_rank", "target_lm_head", "identity"])
def test_a_recurrent_head_is_added_from_the_second_token_on(config, mode, target, tmp_path):
    changes = {"rank_activation": None} if mode == "identity" else {}
    shapes = dict(GRU)
    if mode == "target_lm_head":
        changes["lm_head_mode"] = mode
        del shapes["low_rank_lm_head.weight"]
        shapes["rank_to_hidden.weight"] = (32, 5)
    head = write_head(tmp_path / "head", shapes, **changes)
    folder = write_drafter(tmp_path / "draft", config)
    plain, path = load_drafter(folder, target, options()), torch.tensor([3, 50, 9, 9])
    added = load_drafter(folder, target, options(local_head=head))
    features, recorders = torch.randn(12, 32), (Recorder(path), Recorder(path))
    for drafter, recorder in zip((plain, added), recorders, strict=True):
        drafter.extend(ContextUpdate([0], [0], [12], torch.zeros(12, dtype=torch.int64), features))
        drafter.draft(DraftBatch([0], torch.tensor([17])), recorder)

    w = load_file(head / "model.safetensors")
    embedding = load_file(target.folder / "model.safetensors")["model.embed_tokens.weight"]
    activation = (lambda x: x) if mode == "identity" else torch.nn.functional.silu
    rank = gru_logits(w, embedding, path[:-1], activation)
    if mode == "target_lm_head":
        short = rank @ w["rank_to_hidden.weight"].T @ embedding.T  # the target's head is tied
    else:
        short = rank @ w["low_rank_lm_head.weight"].T
    expected = recorders[0].logits.clone()
    expected[1:] += 0.3 * short - 0.3 * log_prior(w["unigram_counts"])
    torch.testing.assert_close(recorders[1].logits, expected, atol=2e-5, rtol=2e-5)


def test_what_a_published_head_leaves_open_is_told_when_its_dflash_is_loaded(target, tmp_path):
    folder = write_drafter(tmp_path / "dflash", DFLASH)
    head = write_head(tmp_path / "head", {**GRU, **MARKOV})
    counts = load_file(head / "model.safetensors")["unigram_counts"]
    change_tensors(head, unigram_counts=None)
    given = LocalHeadOptions(0.5, 0.2, LocalHeadKind.MARKOV, counts)
    loaded = load_drafter(folder, target, options(local_head=head, fusion=given))
    expected = load(head, target, alpha=0.5, beta=0.2, kind=LocalHeadKind.MARKOV, counts=counts)
    assert isinstance(loaded.head, LocalMarkovHead)
    base, token = torch.randn(1, 3, 64), torch.tensor([9])
    found, wanted = (
        part.begin(torch.zeros(1, 3, 1), base.clone()).logits(1, token)
        for part in (loaded.head, expected)
    )
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("tensors", [GRU, MARKOV])
def test_a_head_is_cut_to_the_tokens_that_its_drafter_knows(tensors, target, tmp_path):
    folder = write_drafter(tmp_path / "dflash", DFLASH, draft_vocab_size=24)
    head = write_head(tmp_path / "head", tensors)
    loaded = load_drafter(folder, target, options(local_head=head))
    whole, base, token = load(head, target), torch.randn(1, 3, 64), torch.tensor([9])
    expected = whole.begin(torch.zeros(1, 3, 1), base.clone())
    found = loaded.head.begin(torch.zeros(1, 3, 1), base[:, :, loaded.target_ids])
    for slot in range(3):
        wanted = expected.logits(slot, token)[:, loaded.target_ids]
        torch.testing.assert_close(found.logits(slot, token), wanted)


def test_a_markov_head_is_recognised_by_its_tensors(target, tmp_path):
    folder = write_head(tmp_path / "head", MARKOV, embed_dim=None, gru_hidden_dim=None)
    head = load(folder, target)
    assert isinstance(head, LocalMarkovHead)
    w = load_file(folder / "model.safetensors")
    base = torch.randn(1, 3, 64)
    run = head.begin(torch.zeros(1, 3, 1), base.clone())
    assert torch.equal(run.logits(0, torch.tensor([9])), base[:, 0])
    short = w["lm_head_weight"] @ w["embedding_weight"][9]
    expected = base[0, 1] + 0.3 * short - 0.3 * log_prior(w["unigram_counts"])
    torch.testing.assert_close(run.logits(1, torch.tensor([9]))[0], expected)


def load(folder, target, **chosen):
    return load_local_head(
        folder,
        read_draft_spec(folder),
        target=target,
        dtype=torch.float32,
        backend=BACKEND,
        options=LocalHeadOptions(**chosen),
    )


def test_a_head_that_does_not_fit_is_refused(target, tmp_path):
    folder = write_head(tmp_path / "a", GRU, vocab_size=65)
    with pytest.raises(Unsupported, match="vocab_size: 65, the target has 64"):
        load(folder, target)
    folder = write_head(tmp_path / "b", {**GRU, "prefix_gru.weight_ih_l0": (36, 16)}, embed_dim=16)
    with pytest.raises(Unsupported, match="embed_dim: 16"):
        load(folder, target)
    folder = write_head(tmp_path / "c", GRU)
    with pytest.raises(Unsupported, match="embedding_weight is missing"):
        load(folder, target, kind=LocalHeadKind.MARKOV)
    change_tensors(folder, unigram_counts=None)
    with pytest.raises(Unsupported, match="beta has to be 0"):
        load(folder, target)
    load(folder, target, beta=0.0)
    change_tensors(folder, **{"rank_proj.weight": None})
    with pytest.raises(Unsupported, match=r"rank_proj.weight is missing"):
        load(folder, target, beta=0.0)


def test_a_recurrent_head_is_refused_unless_it_is_whole(target, tmp_path):
    half = {"prefix_gru.weight_ih_l0": GRU["prefix_gru.weight_ih_l0"]}
    folder = write_head(tmp_path / "a", {**half, **MARKOV})
    with pytest.raises(Unsupported, match="is missing"):
        load(folder, target)
    folder = write_head(tmp_path / "b", MARKOV)
    with pytest.raises(Unsupported, match="is missing"):
        load(folder, target, kind=LocalHeadKind.GRU)
    folder = write_head(tmp_path / "c", {**GRU, **MARKOV})
    assert isinstance(load(folder, target, kind=LocalHeadKind.MARKOV), LocalMarkovHead)
    assert isinstance(load(folder, target), GruHead)
