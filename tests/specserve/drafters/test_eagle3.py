"""The chain of steps against one causal pass over everything, written out in plain operations."""

import pytest
import torch
from safetensors.torch import load_file

from specserve.drafters.load import load_drafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.errors import Unsupported
from specserve.models.rope import rotate
from specserve.sampling.draft_sampler import Greedy
from tests.golden_blocks import Recorder
from tests.specserve.drafters.checkpoints import (
    EAGLE3,
    SGLANG_EAGLE3,
    SPECULATORS_EAGLE3,
    change_tensors,
    make_drafter,
    options,
    write_drafter,
)

HIDDEN, HEADS, KV_HEADS, DIM = 32, 8, 4, 8


@pytest.fixture
def deepspec(target, tmp_path):
    drafter = make_drafter(tmp_path / "draft", EAGLE3, target)
    drafter.weights = load_file(tmp_path / "draft" / "model.safetensors")
    return drafter


@pytest.fixture(params=[EAGLE3, SGLANG_EAGLE3, SPECULATORS_EAGLE3])
def drafter(request, target, tmp_path):
    drafter = make_drafter(tmp_path / "draft", request.param, target)
    drafter.gamma = 4
    return drafter


def extend(drafter, row, token_ids, features):
    start = drafter.context_len(row)
    drafter.extend(ContextUpdate([row], [start], [len(token_ids)], token_ids, features))


def norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def reference_step(drafter, token_ids, g, end):
    """Features after the token at `end`, from pairs (g_p, token p + 1) for p < end."""
    w = {name.removeprefix("layers.0."): t for name, t in drafter.weights.items()}
    embedded = norm(w["embed_tokens.weight"][token_ids], w["input_layernorm.weight"])
    z = torch.cat([embedded, norm(g, w["hidden_norm.weight"])], dim=1)
    rotary = drafter.decoder.rotary.at(torch.arange(len(z)))

    def heads(kind, count):
        x = (z @ w[f"self_attn.{kind}_proj.weight"].T).view(-1, count, DIM)
        return x if kind == "v" else rotate(norm(x, w[f"self_attn.{kind}_norm.weight"]), *rotary)

    q, k, v = heads("q", HEADS)[-1], heads("k", KV_HEADS), heads("v", KV_HEADS)
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (k, v))
    weights = (torch.einsum("hd,nhd->hn", q, k) * DIM**-0.5).softmax(-1)
    attended = torch.einsum("hn,nhd->hd", weights, v).flatten()
    x = g[-1] + w["self_attn.o_proj.weight"] @ attended
    y = norm(x, w["post_attention_layernorm.weight"])
    gated = torch.nn.functional.silu(w["mlp.gate_proj.weight"] @ y) * (w["mlp.up_proj.weight"] @ y)
    return x + w["mlp.down_proj.weight"] @ gated


def test_a_chain_equals_causal_passes_over_everything_before_it(deepspec):
    drafter = deepspec
    token_ids, features = torch.randint(64, (21,)), torch.randn(21, HIDDEN)
    extend(drafter, 0, token_ids[:9], features[:9])
    extend(drafter, 0, token_ids[9:10], features[9:10])
    extend(drafter, 0, token_ids[10:], features[10:])
    path, recorder = torch.tensor([5, 9, 5, 2]), None
    recorder = Recorder(path)
    drafter.draft(DraftBatch([0], torch.tensor([33])), recorder)

    tokens, g = torch.cat([token_ids[1:], torch.tensor([33])]), features
    for slot in range(4):
        hidden = reference_step(drafter, tokens, g, len(tokens))
        expected = (
            norm(hidden, drafter.weights["norm.weight"]) @ drafter.weights["lm_head.weight"].T
        )
        torch.testing.assert_close(recorder.logits[slot], expected, atol=2e-5, rtol=2e-5)
        tokens, g = torch.cat([tokens, path[slot][None]]), torch.cat([g, hidden[None]])


def test_truncation_lets_a_feature_wait_for_another_token(drafter):
    token_ids, features = torch.randint(64, (30,)), torch.randn(30, HIDDEN)
    batch = DraftBatch([0], torch.tensor([33]))
    extend(drafter, 0, token_ids, features)
    for length in (29, 17, 16, 1):
        drafter.truncate(0, length)
        kept = drafter.draft(batch, Greedy()).token_ids
        extend(drafter, 1, token_ids[:length], features[:length])
        assert torch.equal(
            drafter.draft(DraftBatch([1], torch.tensor([33])), Greedy()).token_ids, kept
        )
        drafter.free(1)
    other = (token_ids[1:] + 1) % 64
    extend(drafter, 0, other, features[1:])
    changed = drafter.draft(batch, Greedy()).token_ids
    extend(drafter, 1, torch.cat([token_ids[:1], other]), features)
    assert torch.equal(
        drafter.draft(DraftBatch([1], torch.tensor([33])), Greedy()).token_ids, changed
    )


def test_branches_and_prefixes_draft_as_alone(drafter):
    for row, length in ((0, 5), (1, 37)):
        extend(drafter, row, torch.randint(64, (length,)), torch.randn(length, HIDDEN))
    rows, anchors = [1, 0, 1, 1], torch.tensor([3, 9, 40, 5])
    together = drafter.draft(DraftBatch(rows, anchors, context_lens=[37, 5, 37, 20]), Greedy())
    drafter.truncate(1, 37)
    for place, row in enumerate(rows[:3]):
        alone = drafter.draft(DraftBatch([row], anchors[place : place + 1]), Greedy())
        assert torch.equal(alone.token_ids[0], together.token_ids[place])
    drafter.truncate(1, 20)
    alone = drafter.draft(DraftBatch([1], anchors[3:]), Greedy())
    assert torch.equal(alone.token_ids[0], together.token_ids[3])


def test_one_update_of_many_rows_equals_many_updates(drafter):
    parts = [(torch.randint(64, (n,)), torch.randn(n, HIDDEN)) for n in (1, 20, 3)]
    for row, part in enumerate(parts):
        extend(drafter, row, *part)
    tokens, features = (torch.cat(kind) for kind in zip(*parts, strict=True))
    drafter.extend(ContextUpdate([10, 11, 12], [0] * 3, [1, 20, 3], tokens, features))
    anchors = torch.tensor([1, 2, 3])
    one, many = (drafter.draft(DraftBatch(r, anchors), Greedy()) for r in ([0, 1, 2], [10, 11, 12]))
    assert torch.equal(one.token_ids, many.token_ids)


def logits_of(drafter, row, anchor_id, path=None, **batch):
    recorder = Recorder(path)
    drafter.draft(DraftBatch([row], torch.tensor([anchor_id]), **batch), recorder)
    return recorder.logits


def test_behind_pending_tokens_the_chain_feeds_on_its_own_features(drafter):
    extend(drafter, 0, torch.randint(64, (21,)), torch.randn(21, HIDDEN))
    path = torch.tensor([9, 5, 2, 8])
    forced = logits_of(drafter, 0, 33, path)
    for gap in (1, 2, 3):
        tokens = [33, *path.tolist()]
        behind = logits_of(drafter, 0, tokens[gap], path[gap:].repeat(4), gap_ids=[tokens[:gap]])
        torch.testing.assert_close(behind[: 4 - gap], forced[gap:], atol=2e-5, rtol=2e-5)


def test_gaps_of_different_lengths_in_a_batch_draft_as_alone(drafter):
    for row, length in ((0, 5), (1, 37)):
        extend(drafter, row, torch.randint(64, (length,)), torch.randn(length, HIDDEN))
    rows, anchors = [1, 0, 1, 1], torch.tensor([3, 9, 40, 5])
    gaps = [[7, 8, 9], [], [1], [2, 3]]
    for min_gap in (0, 5):
        batch = DraftBatch(rows, anchors, gaps, min_gap=min_gap, keep_logits=True)
        together = drafter.draft(batch, Greedy())
        for place, row in enumerate(rows):
            alone = logits_of(drafter, row, int(anchors[place]), gap_ids=[gaps[place]])
            torch.testing.assert_close(together.logits[place], alone, atol=2e-5, rtol=2e-5)


def test_a_chain_that_is_cut_off_keeps_what_its_tokens_were_drawn_from(drafter):
    extend(drafter, 0, torch.randint(64, (21,)), torch.randn(21, HIDDEN))
    rows, anchors = [0, 0], torch.tensor([33, 5])
    whole = drafter.draft(DraftBatch(rows, anchors, keep_logits=True), Greedy())
    cut = drafter.draft(DraftBatch(rows, anchors, keep_logits=True, due_s=0.0), Greedy())
    assert torch.equal(cut.token_ids, whole.token_ids[:, :2])
    torch.testing.assert_close(cut.logits, whole.logits[:, :2])


def test_a_part_of_the_vocabulary_is_drafted_by_its_target_ids(target, tmp_path):
    drafter = make_drafter(tmp_path / "draft", SGLANG_EAGLE3, target)
    extend(drafter, 0, torch.randint(64, (21,)), torch.randn(21, HIDDEN))
    drafted = drafter.draft(DraftBatch([0], torch.tensor([33]), keep_logits=True), Greedy())
    assert drafted.logits.shape == (1, 5, 40)
    assert len(drafter.target_ids) == 40
    assert torch.equal(drafted.target_ids, drafter.target_ids)
    assert torch.equal(drafted.token_ids, drafter.target_ids[drafted.logits.argmax(-1)])
    # The same path, given by its target ids, leads to the same logits.
    recorder = Recorder(drafted.token_ids[0])
    drafter.draft(DraftBatch([0], torch.tensor([33])), recorder)
    torch.testing.assert_close(recorder.logits, drafted.logits[0])


def test_a_drafter_may_be_narrower_than_its_target(target, tmp_path):
    changes = {"hidden_size": 16, "target_hidden_size": 32, "num_attention_heads": 4}
    drafter = make_drafter(tmp_path / "draft", SGLANG_EAGLE3, target, **changes)
    assert drafter.feature_size == 16
    features = drafter.features.project(torch.randn(21, 3 * 32))
    extend(drafter, 0, torch.randint(64, (21,)), features)
    drafted = drafter.draft(DraftBatch([0], torch.tensor([33])), Greedy())
    assert drafted.token_ids.shape == (1, 5)
    change_tensors(tmp_path / "draft", **{"embed_tokens.weight": None})
    with pytest.raises(Unsupported, match=r"embed_tokens\.weight is missing"):
        load_drafter(tmp_path / "draft", target, options())


def test_a_longer_chain_may_be_asked_for_where_the_checkpoint_names_none(target, tmp_path):
    folder = write_drafter(tmp_path / "draft", SGLANG_EAGLE3)
    for asked, gamma in ((3, 3), (9, 9), (40, 16), (None, 5)):
        assert load_drafter(folder, target, options(gamma=asked)).gamma == gamma
    folder = write_drafter(tmp_path / "deepspec", EAGLE3)
    assert load_drafter(folder, target, options(gamma=9)).gamma == 4
