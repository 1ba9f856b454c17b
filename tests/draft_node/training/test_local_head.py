"""Local heads: what they are trained on, what they learn, and that the drafter loads the result."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from draft_node.training import text_source
from draft_node.training.__main__ import main
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.local_head_export import HeadRecord, write_head
from draft_node.training.local_head_fusion import Chosen, FusionPlan, choose_weights, search
from draft_node.training.local_head_model import (
    DECAY,
    LocalHeadModel,
    _principal,
    unigram_counts,
)
from draft_node.training.self_text import SelfTextConfig
from draft_node.training.trainer import Trainer
from specserve.drafters.block_drafter import BlockDrafter
from specserve.drafters.dialects import read_draft_spec
from specserve.drafters.load import load_drafter
from specserve.drafters.local_head import (
    UNIGRAM_COUNTS,
    GruHead,
    LocalHeadOptions,
    LocalMarkovHead,
    load_local_head,
    log_prior,
)
from specserve.drafters.spec import LocalHeadSpec
from specserve.drafters.weights import TargetWeights
from tests.backends.chosen import BACKEND
from tests.draft_node.training.drafters import (
    QUESTION,
    TEXT,
    VOCAB,
    patterned_stream,
    write_chats,
    write_target,
)
from tests.specserve.drafters.checkpoints import DFLASH, DSPARK, options, write_drafter

KINDS = {
    "gru": LocalHeadSpec(VOCAB, 32, 12, 5, True, False),
    "through the target": LocalHeadSpec(VOCAB, 32, 12, 5, True, True),
    "markov": LocalHeadSpec(VOCAB, 0, 0, 5, False, False),
}
RECORD = HeadRecord(
    command="specserve train local-head", target="target", steps=3, tokens=4000, active_minutes=0.5
)


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> FrozenTarget:
    return FrozenTarget(write_target(tmp_path_factory.mktemp("target")))


def make_model(target, kind="gru", window=6) -> LocalHeadModel:
    model = LocalHeadModel(KINDS[kind], target, window)
    model.initialise(0)
    return model


def load_head(target, folder, **chosen):
    spec = read_draft_spec(folder)
    assert isinstance(spec, LocalHeadSpec)
    return load_local_head(
        folder,
        spec,
        target=TargetWeights.of(target.folder),
        dtype=torch.float32,
        backend=BACKEND,
        options=LocalHeadOptions(**chosen),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_head_gives_the_logits_it_was_trained_to(kind, target, tmp_path):
    model = make_model(target, kind)
    weights = {name: w.bfloat16() for name, w in model.state_dict().items()}
    model.load_state_dict({name: w.float() for name, w in weights.items()})
    counts = torch.arange(VOCAB)
    write_head(weights, counts, model.spec, RECORD, {"text": [1.0, 2.0]}, tmp_path)

    head = load_head(target, tmp_path, alpha=1.0, beta=0.0)
    assert isinstance(head, LocalMarkovHead if kind == "markov" else GruHead)
    path = torch.tensor([9, 41, 41, 250])
    run = head.begin(torch.zeros(1, 5, 1), torch.zeros(1, 5, VOCAB))
    run.logits(0, torch.tensor([17]))  # the anchor, which the head must not see
    served = torch.cat([run.logits(slot + 1, path[slot : slot + 1]) for slot in range(4)])
    with torch.no_grad():
        torch.testing.assert_close(served, model(path[None])[0], atol=2e-5, rtol=1e-4)

    whole = load_head(target, tmp_path)
    base = torch.zeros(1, 2, VOCAB)
    fused = whole.begin(torch.zeros(1, 2, 1), base)
    fused.logits(0, torch.tensor([17]))
    expected = 0.3 * served[0] - 0.3 * log_prior(counts)
    torch.testing.assert_close(fused.logits(1, path[:1])[0], expected, atol=2e-5, rtol=1e-4)


def test_only_what_stands_in_the_window_is_seen(target):
    model = make_model(target)
    tokens = torch.randint(8, VOCAB, (2, 5))
    changed = tokens.clone()
    changed[0, 2] = 7
    with torch.no_grad():
        before, after = model(tokens), model(changed)
        alone = model(tokens[:1])
    assert torch.equal(before[0, :2], after[0, :2])
    assert not torch.equal(before[0, 2], after[0, 2])
    torch.testing.assert_close(before[:1], alone)


def test_the_loss_is_that_of_windows_weighted_by_slot(target):
    model = make_model(target)
    tokens = torch.randint(8, VOCAB, (3, 6))  # one window a row: nothing is left to chance
    with torch.no_grad():
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        logs = model(tokens[:, :-1]).log_softmax(-1)
    nats = -logs.gather(2, tokens[:, 1:, None])[..., 0].mean(dim=0)
    weights = torch.tensor([np.exp(-k / DECAY) for k in range(5)], dtype=torch.float32)
    torch.testing.assert_close(loss, (nats * weights).sum() / weights.sum())


def test_a_window_has_labels_up_to_the_first_token_that_is_not_learned(target):
    model = make_model(target)
    tokens = torch.randint(8, VOCAB, (3, 6))
    marked = tokens.clone()
    marked[0, :2] = ~marked[0, :2]  # nobody drafts behind a question
    marked[1, 4:] = ~marked[1, 4:]
    with torch.no_grad():
        loss = model.loss(tokens[:, :-1], marked[:, 1:])
        nats = -model(tokens[:, :-1]).log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
    slots = [nats[1:, 0], nats[1:, 1], nats[1:, 2], nats[2:, 3], nats[2:, 4]]
    means = torch.stack([slot.mean() for slot in slots])
    weights = torch.tensor([np.exp(-k / DECAY) for k in range(5)], dtype=torch.float32)
    torch.testing.assert_close(loss, (means * weights).sum() / weights.sum())
    torch.testing.assert_close(model.slot_losses(marked.numpy().flatten()), means)
    assert model.loss(tokens[:, :-1], ~tokens[:, 1:]).detach() == 0


def test_windows_begin_everywhere(target, monkeypatch):
    model = make_model(target)
    firsts = set()
    original = model._losses

    def spy(windows):
        firsts.add(int(windows[0, 0]))
        assert windows.shape[1] == 6
        return original(windows)

    monkeypatch.setattr(model, "_losses", spy)
    row = torch.arange(40)[None]
    for seed in range(60):
        torch.manual_seed(seed)
        model.loss(row[:, :-1], row[:, 1:])
    assert firsts == set(range(6))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_learns_a_repeating_pattern(kind, target):
    model = make_model(target, kind)
    stream = patterned_stream()
    before = model.evaluate({"text": stream})["text"]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    rows = torch.from_numpy(stream[: 16 * 41].astype(np.int64)).view(16, 41)
    for _ in range(80):
        optimizer.zero_grad()
        model.loss(rows[:, :-1], rows[:, 1:]).backward()
        optimizer.step()
    slots = model.slot_losses(stream)
    assert slots.shape == (5,)
    assert float(slots.mean()) < before - 1
    if kind != "markov":
        assert slots[-1] < slots[0]  # the more of the pattern it has seen, the better


def test_frozen_parts_are_neither_trained_nor_stored(target):
    model = make_model(target)
    assert set(model.state_dict()) == {
        "prefix_gru.weight_ih_l0",
        "prefix_gru.weight_hh_l0",
        "rank_proj.weight",
        "low_rank_lm_head.weight",
    }
    assert sum(p.numel() for p in model.parameters()) < VOCAB * 32


def test_the_prior_counts_text_as_it_is_mixed():
    streams = {"a": np.array([1] * 10, np.uint16), "b": np.array([2] * 80 + [3] * 10, np.uint16)}
    counts = unigram_counts(streams, ("a", "b"), 5)
    assert counts.tolist() == [0, 50, 44, 6, 0]
    assert counts.dtype == torch.int64
    assert unigram_counts(streams, ("a",), 5).tolist() == [0, 100, 0, 0, 0]
    marked = {"chat": np.array([~4, ~4, 1, 2, 2])}
    assert unigram_counts(marked, ("chat",), 5).tolist() == [0, 1, 2, 0, 0]


def test_the_search_takes_the_best_pair_and_knows_what_is_had_without():
    peak = {(0.0, 0.0): 2.0, (0.2, 0.1): 2.5, (0.3, 0.3): 2.5}
    chosen = search(lambda a, b: peak.get((a, b), 1.0), (0.0, 0.1, 0.2, 0.3))
    assert chosen == Chosen(0.2, 0.1, 2.5, 2.0)
    assert search(lambda a, b: 1.0 - a) == Chosen(0.0, 0.0, 1.0, 1.0)


@pytest.mark.slow
def test_weights_are_chosen_with_the_drafter_in_the_loop(target, tmp_path, monkeypatch):
    sizes = {"vocab_size": VOCAB, "num_target_layers": 3}
    dflash = write_drafter(tmp_path / "dflash", DFLASH, **sizes)
    dspark = write_drafter(tmp_path / "dspark", DSPARK, **sizes)
    model = make_model(target)
    write_head(
        model.state_dict(), torch.ones(VOCAB, dtype=torch.int64), model.spec, RECORD,
        {"text": [1.0]}, tmp_path / "head",
    )  # fmt: skip
    from draft_node.training import local_head_fusion

    scores = {}

    def two_pairs(score):
        scores.update({pair: score(*pair) for pair in ((0.0, 0.0), (0.6, 0.0), (0.0, 0.0))})
        return Chosen(0.6, 0.0, scores[0.6, 0.0], scores[0.0, 0.0])

    monkeypatch.setattr(local_head_fusion, "search", two_pairs)
    held_out = {"text": patterned_stream(200)}
    plan = FusionPlan(num_texts=3, prompt_len=8, num_tokens=8)

    def choose(drafter):
        return choose_weights(
            target.folder, drafter, tmp_path / "head", held_out,
            device=torch.device("cpu"), plan=plan,
        )  # fmt: skip

    chosen = choose(dflash)
    assert 1 < chosen.accept_len_without < 5
    assert chosen.accept_len != chosen.accept_len_without
    with pytest.raises(Exception, match="local head can only be added to a DFlash"):
        choose(dspark)


def test_what_takes_no_local_head_is_refused_before_training(train, tmp_path, capsys):
    sizes = {"vocab_size": VOCAB, "num_target_layers": 3}
    write_drafter(tmp_path / "dspark", DSPARK, **sizes)
    write_drafter(tmp_path / "foreign", DFLASH, **{**sizes, "vocab_size": 96})
    write_target(tmp_path / "lm")
    for name, problem in (
        ("dspark", ": a local head can only be added to a DFlash"),
        ("lm", ": a local head can only be added to a DFlash"),
        ("foreign", f": vocab_size: 96, the target has {VOCAB}"),
        ("nowhere", " is no model folder, config.json is missing"),
    ):
        assert train("--fuse-with", str(tmp_path / name)) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"specserve: --fuse-with: {tmp_path / name}{problem}")
    assert not (tmp_path / "head").exists()


@pytest.fixture
def train(target, tmp_path, monkeypatch):
    """Run the command on that target for a few seconds."""
    pool = SelfTextConfig(rows=16, length=64, shortest_prompt=2, longest_prompt=8)
    monkeypatch.setattr(text_source, "SelfTextConfig", lambda **_: pool)
    (tmp_path / "text.txt").write_text("\n".join(TEXT))

    def run(*flags: str, out: str = "head") -> int:
        words = ["--target", target.folder, "--text", tmp_path / "text.txt"]
        words += ["--work", tmp_path / "work", "--out", tmp_path / out, "--threads", "1"]
        words += ["--tokens-per-step", "512", "--minutes", "0.03", "--width", "12", "--rank", "5"]
        return main(["local-head", *map(str, words), "--self-text", "0", *flags])

    return run


@pytest.mark.slow
def test_a_run_ends_in_a_folder_that_is_added_to_a_dflash(target, train, tmp_path):
    assert train() == 0
    sizes = {"vocab_size": VOCAB, "num_target_layers": 3}
    folder = write_drafter(tmp_path / "dflash", DFLASH, **sizes)
    weights = TargetWeights.of(target.folder)
    drafter = load_drafter(folder, weights, options(local_head=tmp_path / "head"))
    assert isinstance(drafter, BlockDrafter)
    assert isinstance(drafter.head, GruHead)
    assert drafter.head.prior is not None
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert "alpha" not in config
    figures = json.loads((tmp_path / "head" / "held_out.json").read_text())["nats_by_slot"]
    assert len(figures["text"]) == 15
    assert (
        "alpha 0.3 and beta 0.3 (the paper's values)"
        in (tmp_path / "head" / "README.md").read_text()
    )


@pytest.mark.slow
def test_a_head_learns_the_answers_of_chats(target, train, tmp_path):
    chats = write_chats(tmp_path / "chats")
    assert train("--data", str(chats)) == 2  # beside --text
    words = ["--target", target.folder, "--data", chats, "--work", tmp_path / "work"]
    words += ["--out", tmp_path / "head", "--steps", "2", "--tokens-per-step", "512"]
    assert main(["local-head", *map(str, words), "--head", "markov"]) == 0
    counts = load_file(tmp_path / "head" / "model.safetensors")[UNIGRAM_COUNTS]
    assert counts[QUESTION] == 0
    assert counts.sum() > 1000


@pytest.mark.slow
def test_fused_weights_are_stored_with_the_head(target, train, tmp_path, monkeypatch):
    from draft_node.training import local_head_run

    dflash = write_drafter(tmp_path / "dflash", DFLASH, vocab_size=VOCAB, num_target_layers=3)
    monkeypatch.setattr(
        local_head_run, "choose_weights", lambda *_, **__: Chosen(0.4, 0.2, 2.0, 1.5)
    )
    assert train("--fuse-with", str(dflash), "--head", "markov") == 0
    spec = read_draft_spec(tmp_path / "head")
    assert isinstance(spec, LocalHeadSpec)
    assert (spec.alpha, spec.beta) == (0.4, 0.2)
    head = load_head(target, tmp_path / "head")
    doubled = load_head(target, tmp_path / "head", alpha=0.8)
    assert isinstance(head, LocalMarkovHead)
    rank = torch.randn(1, 5)
    torch.testing.assert_close(doubled.output(rank), 2 * head.output(rank))


@pytest.mark.slow
def test_a_head_can_borrow_the_targets_output_weights(target, train, tmp_path):
    assert train("--through-target-head") == 0
    assert isinstance(load_head(target, tmp_path / "head"), GruHead)
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["lm_head_mode"] == "target_lm_head"


@pytest.mark.slow
def test_a_stopped_run_is_resumed_and_another_refused(train, tmp_path, monkeypatch, capsys):

    from draft_node.training import run as training_run

    steps = []

    def stop_soon(trainer: Trainer, schedule, console) -> bool:
        steps.append(trainer.progress.step)
        trainer.stop = len(steps) == 1
        return trainer.run(schedule, lambda *_: None)

    monkeypatch.setattr(training_run, "run_until_stopped", stop_soon)
    assert train() == 130
    assert not (tmp_path / "head" / "model.safetensors").exists()
    assert train("--window", "8") == 2
    assert "specserve: --window:" in capsys.readouterr().err
    assert train() == 0
    assert train() == 0
    assert steps[0] == steps[1] == 0
    assert steps[2] > 0


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--window", "1"), "--window: a block of one token"),
        (("--head", "markov", "--through-target-head"), "--through-target-head: only a gru"),
        (("--device", "tpu"), "--device: tpu:"),
        (("--target", "/proc"), "--target: model.target: /proc is no model folder"),
    ],
)
def test_errors_name_the_flag(flags, problem, train, capsys):
    assert train(*flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"specserve: {problem}")


def test_first_weights_do_not_have_the_signs_that_a_library_chose(monkeypatch: pytest.MonkeyPatch):
    weight = torch.randn(60, 12, generator=torch.Generator().manual_seed(0))
    expected = _principal(weight, 5)
    eigh = torch.linalg.eigh
    signs = torch.tensor([1.0, -1.0] * 6)

    def other_signs(matrix: torch.Tensor):
        values, directions = eigh(matrix)
        return values, directions * signs

    monkeypatch.setattr(torch.linalg, "eigh", other_signs)
    torch.testing.assert_close(_principal(weight, 5), expected)
