"""The target replayed offline, and drafters judged along its texts, against plain computation."""

import numpy as np
import pytest
import torch

from draft_node.calibration.collect import Conditions, collect, count_anchors
from draft_node.calibration.texts import (
    Prompt,
    Text,
    held_out_requests,
    read_prompts,
    write_texts,
)
from draft_node.offline_target import OfflineTarget
from draft_node.training.chats.store import ChatStore, Exchange, is_held_out
from specserve.drafters.attach_calibration import listen
from specserve.drafters.load import load_drafter
from specserve.drafters.probs_confidence import FeatureRecorder, confidence_features
from specserve.drafters.weights import TargetWeights
from specserve.errors import Exhausted, InvalidField, Unsupported
from specserve.sampling.verification.method import VerificationMethod
from tests.golden_case import Session
from tests.specserve.drafters.checkpoints import (
    DFLASH,
    DSPARK,
    EAGLE3,
    options,
    write_drafter,
    write_part,
)
from tests.specserve.models.checkpoints import QWEN3, load, write_checkpoint

PROMPTS = [Prompt("a", (5, 9, 33, 2)), Prompt("b", (8,) * 7), Prompt("a", (40, 41, 42, 43, 44))]
REJECTION = Conditions(VerificationMethod.REJECTION, temperature=1.0, num_kept=64, stride=3)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A small random target, loaded."""
    folder = write_checkpoint(tmp_path_factory.mktemp("target"), QWEN3)
    return TargetWeights.of(folder, load(folder))


def offline(running, drafter=None, num_tokens=600) -> OfflineTarget:
    layers = drafter.features.layers if drafter is not None and drafter.features else ()
    return OfflineTarget(running.model, num_tokens=num_tokens, layers=layers)


def whole_logits(running, token_ids) -> torch.Tensor:
    """Logits at every position of one sequence, by one forward: [T, V]."""
    session = Session(running.model, len(token_ids))
    hidden, _ = session.feed(torch.tensor(token_ids))
    return session.logits(hidden)


def test_rows_are_fed_in_pieces_and_rolled_back(running):
    target = OfflineTarget(running.model, num_tokens=200, layers=(-1, 0))
    paths = [[3, 7, 9, 11, 2], [4] * 9]
    target.feed([0, 1], [paths[0][:2], paths[1][:6]])
    target.feed([1, 0], [[50, 51, 52], [60]])
    target.truncate(1, 6)
    target.truncate(0, 2)
    fed = target.feed([0, 1], [paths[0][2:], paths[1][6:]])
    assert [target.length(0), target.length(1)] == [5, 9]
    expected = [whole_logits(running, path)[-3:] for path in paths]
    torch.testing.assert_close(target.logits(fed.hidden), torch.cat(expected))
    assert fed.residuals.shape == (6, 64)
    embedded = running.model.embedding[torch.tensor(paths[0][2:] + paths[1][6:])]
    assert torch.equal(fed.residuals[:, :32], embedded)
    target.free(1)
    assert target.length(1) == 0
    with pytest.raises(Exhausted, match="pages needed"):
        target.feed([2], [[1] * 220])


def test_greedy_texts_are_those_of_plain_decoding(running):
    told = list[int]()
    texts = write_texts(
        offline(running), PROMPTS, num_tokens=6, temperature=0.0, seed=0, batch_size=2,
        advance=told.append,
    )  # fmt: skip
    assert sum(told) == 6 * len(PROMPTS)
    assert len(told) > len(PROMPTS)  # while they are written
    for text, prompt in zip(texts, PROMPTS, strict=True):
        ids = list(prompt.token_ids)
        for _ in range(6):
            token_id = int(whole_logits(running, ids)[-1].argmax())
            if token_id in running.spec.eos_token_ids:
                break
            ids.append(token_id)
        assert list(text.token_ids) == ids
        assert text.num_generated == len(ids) - len(prompt.token_ids)


def test_sampled_texts_depend_on_their_seed_alone(running):
    def write(prompts, seed, batch_size=3):
        return write_texts(
            offline(running), prompts, num_tokens=8, temperature=1.0, seed=seed,
            batch_size=batch_size,
        )  # fmt: skip

    first, again, other = write(PROMPTS, 7), write(PROMPTS, 7, batch_size=1), write(PROMPTS, 8)
    assert first == again
    assert [t.token_ids for t in first] != [t.token_ids for t in other]
    assert write(PROMPTS[1:], 8)[0] == first[1]


def texts_of(running) -> list[Text]:
    return write_texts(offline(running), PROMPTS, num_tokens=10, temperature=1.0, seed=3)


class Spy:
    """A drafter that remembers what it was asked and what it answered."""

    def __init__(self, drafter):
        self._drafter, self.rounds = drafter, []

    def __getattr__(self, name):
        return getattr(self._drafter, name)

    def draft(self, batch, method):
        lengths = [self._drafter.context_len(row) for row in batch.rows]
        drafted = self._drafter.draft(batch, method)
        self.rounds.append((batch, lengths, drafted))
        return drafted


@pytest.mark.parametrize("config", [DSPARK, DFLASH, EAGLE3, None])
def test_chances_are_those_of_the_targets_distributions_along_the_drafted_path(
    running, config, tmp_path
):
    folder = tmp_path / "draft"
    folder = write_part(folder) if config is None else write_drafter(folder, config)
    spy = Spy(load_drafter(folder, running, options()))
    recorder = None
    if config is not DSPARK:
        recorder = FeatureRecorder()
        listen(spy._drafter, recorder)
    texts = texts_of(running)
    samples = collect(offline(running, spy), spy, texts, REJECTION, recorder=recorder)
    assert len(samples.texts) == count_anchors(texts, 3)
    assert (samples.features is None) is (config is DSPARK)

    row_of_sample = 0
    for batch, lengths, drafted in spy.rounds:
        draft_probs = drafted.draft_probs
        for b, row in enumerate(batch.rows):
            text, length = texts[row].token_ids, lengths[b]
            assert batch.anchor_ids[b] == text[length]
            path = drafted.token_ids[b].tolist()
            target_probs = whole_logits(running, [*text[: length + 1], *path]).softmax(-1)
            for k, token_id in enumerate(path):
                q = torch.zeros(64)
                place = b * spy.gamma + k
                kept = draft_probs.ids[place] < 64
                q[draft_probs.ids[place][kept]] = draft_probs.probs[place][kept]
                p = target_probs[length + k]
                chance = min(1.0, float(p[token_id] / q[token_id]))
                overlap = float(torch.minimum(p, q).sum())
                assert samples.stands[row_of_sample, k] == pytest.approx(chance, abs=1e-4)
                assert samples.expected[row_of_sample, k] == pytest.approx(overlap, abs=1e-4)
            assert samples.texts[row_of_sample] == row
            confidences = 1 / (1 + np.exp(-samples.logits[row_of_sample]))
            np.testing.assert_allclose(confidences, drafted.confidences[b].numpy(), atol=1e-5)
            ends = [k for k, token_id in enumerate(path) if token_id == 1]
            assert samples.lengths[row_of_sample] == (ends[0] + 1 if ends else spy.gamma)
            row_of_sample += 1
    assert row_of_sample == len(samples.texts)
    assert 0 < samples.expected.min() < samples.expected.max() < 1


@pytest.mark.parametrize(
    ("method", "temperature"),
    [(VerificationMethod.COUPLED, 1.0), (VerificationMethod.COUPLED, 0.0), (REJECTION.method, 0.0)],
)
def test_a_perfect_drafter_always_stands_where_equality_decides(running, method, temperature):
    drafter = load_drafter(running.folder, running, options(gamma=3))
    recorder = FeatureRecorder()
    listen(drafter, recorder)
    conditions = Conditions(method, temperature=temperature, stride=2)
    texts = write_texts(offline(running), PROMPTS, num_tokens=10, temperature=temperature, seed=3)
    samples = collect(offline(running), drafter, texts, conditions, recorder=recorder)
    assert samples.stands.min() == 1.0
    assert np.array_equal(samples.stands, samples.expected)
    # The drafter's own distributions are the target's, so what it heard can be computed from the
    # texts.
    length = len(PROMPTS[0].token_ids)
    logits = whole_logits(running, texts[0].token_ids[: length + 1])[-1]
    expected = confidence_features(logits[None, None])[0, 0]
    np.testing.assert_allclose(samples.features[0, 0], expected.numpy(), atol=1e-4)


def test_texts_that_end_at_once_and_drafters_without_confidences_are_refused(running, tmp_path):
    drafter = load_drafter(write_drafter(tmp_path / "draft", DFLASH), running, options())
    target = offline(running, drafter)
    with pytest.raises(Unsupported, match="no confidences"):
        collect(target, drafter, texts_of(running), REJECTION)
    ended = [Text(prompt, prompt.token_ids, 0) for prompt in PROMPTS]
    with pytest.raises(Unsupported, match="nothing to measure"):
        collect(target, drafter, ended, REJECTION)


def test_prompts_are_taken_from_all_files_in_turn(tmp_path):
    from tests.draft_node.training.drafters import write_target

    target = write_target(tmp_path / "target")
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    (prompts / "a.jsonl").write_text('{"text": "def some"}\n{"text": "return to"}\n')
    (prompts / "b.jsonl").write_text('{"text": "and more of it"}\n')
    found = read_prompts(prompts, target, 3, max_len=3)
    assert [prompt.domain for prompt in found] == ["a", "b", "a"]
    assert all(0 < len(prompt.token_ids) <= 3 for prompt in found)
    with pytest.raises(InvalidField, match=r"--num-prompts: .* has only 3 prompts"):
        read_prompts(prompts, target, 4, max_len=3)
    (prompts / "b.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(InvalidField, match=r"--prompts: .*b\.jsonl: prompt 1 has no tokens"):
        read_prompts(prompts, target, 2, max_len=3)
    (prompts / "b.jsonl").write_text("[]\n")
    with pytest.raises(InvalidField, match=r"--prompts: .*b\.jsonl: line 1 is no object with a"):
        read_prompts(prompts, target, 1, max_len=3)
    nowhere = tmp_path / "none.jsonl"
    with pytest.raises(InvalidField, match=f"--prompts: cannot read {nowhere}: No such file or"):
        read_prompts(nowhere, target, 1, max_len=3)


def test_chats_give_requests_that_no_training_learns(tmp_path):
    """Whole ones, each once, and from the first chats to the last."""
    store = ChatStore(tmp_path)
    asked = {number: (3, number % 64, 7, number // 64) for number in range(400)}
    long = (9,) * 30
    chats = [Exchange(number, 1.0, ids, (5, 0)) for number, ids in asked.items()]
    chats += [Exchange(number, 0.0, asked[number], (6, 0)) for number in range(400)]
    chats += [Exchange(number, 0.0, ids, (6, 0)) for number in range(400) for ids in ((), long)]
    store.add(400, chats, 64)
    held_out = [chat.prompt_ids for chat in chats[:400] if is_held_out(chat)]
    found = held_out_requests(tmp_path, len(held_out), 29, 64)
    assert [prompt.token_ids for prompt in found] == held_out
    few = [prompt.token_ids for prompt in held_out_requests(tmp_path, 4, 29, 64)]
    assert few[0] == held_out[0]
    assert few[-1] in held_out[-len(held_out) // 3 :]
    too_many = len(held_out) + 1
    told = f"has {len(held_out)} held-out requests; type --num-prompts {len(held_out)}, or write"
    with pytest.raises(InvalidField, match=f"--num-prompts: .* {told}"):
        held_out_requests(tmp_path, too_many, 29, 64)
    assert long in {p.token_ids for p in held_out_requests(tmp_path, too_many, 30, 64)}
    with pytest.raises(InvalidField, match=r"--data: .* has no token"):
        held_out_requests(tmp_path, 4, 29, 40)
