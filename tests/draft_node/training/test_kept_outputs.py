"""What a target gives for its chats is computed once, found again by its tokens, and the same."""

import argparse
import resource
import shutil
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from draft_node.training import frozen_target, keep_outputs, text_source
from draft_node.training.batches import BatchSource, tokens_of
from draft_node.training.chats.store import ChatStore, Exchange, stream_of
from draft_node.training.draft_vocabulary import DraftVocabulary
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.kept_outputs import KeptOutputs
from specserve.backends.torch.backend import TorchBackend
from specserve.backends.torch.parts import TorchParts
from specserve.errors import InvalidField
from tests.draft_node.training.drafters import (
    VOCAB,
    arguments,
    make_objective,
    random_tokens,
    write_target,
)

LAYERS = (0, 1)
LENGTHS = ((30, 170), (12, 60), (9, 300), (140, 150), (20, 20), (33, 140))  # asked, and answered


@pytest.fixture
def target(tmp_path) -> FrozenTarget:
    return FrozenTarget(write_target(tmp_path / "target", max_position_embeddings=512))


@pytest.fixture(scope="module")
def stream_and_starts() -> tuple[np.ndarray, np.ndarray]:
    chats = []
    for number, (asked, answered) in enumerate(LENGTHS):
        tokens = random_tokens(asked + answered, seed=number).tolist()
        chats.append(Exchange(number, 0.0, tokens[:asked], tokens[asked:]))
    return stream_of(chats)


def kept(folder, target, stream_and_starts, layers=LAYERS) -> KeptOutputs:
    folder.mkdir(exist_ok=True)
    keep_outputs.compute(folder, target, stream_and_starts[0], layers)
    return KeptOutputs(folder, *stream_and_starts, layers)


def row(stream: np.ndarray, start: int, length: int) -> torch.Tensor:
    return tokens_of(torch.from_numpy(stream[None, start : start + length].astype(np.int64)))


def stopped_after(calls: int, function: Callable[..., object]) -> Callable[..., object]:
    """The function, which a signal ends then."""
    done = iter(range(calls))

    def stopped(*inputs: object) -> object:
        if next(done, None) is None:
            raise KeyboardInterrupt
        return function(*inputs)

    return stopped


def calls_of(target: FrozenTarget, monkeypatch) -> list[tuple[int, ...]]:
    """The sizes of all that is computed from now on."""
    sizes, computed = list[tuple[int, ...]](), target.computed

    def counted(token_ids, layers):
        sizes.append((*token_ids.shape, len(layers)))
        return computed(token_ids, layers)

    monkeypatch.setattr(target, "computed", counted)
    return sizes


def test_requests_begin_where_answers_end(stream_and_starts):
    found = keep_outputs.requests_of(stream_and_starts[0], 512)
    assert [end - start for start, end in found] == [sum(lengths) for lengths in LENGTHS]


def test_rows_are_as_they_are_computed(tmp_path, target, stream_and_starts):
    stream, _ = stream_and_starts
    outputs = kept(tmp_path / "kept", target, stream_and_starts)
    for start, end in keep_outputs.requests_of(stream, 512):
        if end - start < 128:
            continue
        ids = row(stream, start, end - start)
        found, expected = outputs.outputs(ids, LAYERS), target.computed(ids, LAYERS)
        assert found is not None
        torch.testing.assert_close(found.features, expected.features, rtol=1e-2, atol=1e-3)
        torch.testing.assert_close(found.hidden, expected.hidden, rtol=1e-3, atol=1e-3)
        sums = target.model.logits(expected.hidden[0]).logsumexp(-1)
        torch.testing.assert_close(found.log_sums[0], sums, rtol=1e-4, atol=1e-4)


def test_a_row_inside_a_request_knows_all_of_it(tmp_path, target, stream_and_starts):
    stream, starts = stream_and_starts
    outputs = kept(tmp_path / "kept", target, stream_and_starts)
    request = next(r for r in keep_outputs.requests_of(stream, 512) if r[1] - r[0] == 309)
    inside = request[0] + 256
    assert inside in starts
    ids = row(stream, inside, request[1] - inside)
    longer = torch.cat([ids, row(stream, request[1], 128)], dim=1)  # and goes on in the next one
    found = outputs.outputs(longer, LAYERS)
    whole = target.computed(row(stream, request[0], 309), LAYERS)
    assert found is not None
    torch.testing.assert_close(
        found.hidden[:, : ids.shape[1]], whole.hidden[:, 256:], rtol=1e-3, atol=1e-3
    )


def test_other_rows_and_layers_are_computed(tmp_path, target, stream_and_starts, monkeypatch):
    stream, _ = stream_and_starts
    target.kept = kept(tmp_path / "kept", target, stream_and_starts)
    sizes = calls_of(target, monkeypatch)
    target.outputs(row(stream, 0, 200), LAYERS)
    assert sizes == []
    for ids, layers in (
        (row(stream, 1, 200), LAYERS),
        (random_tokens(1, 200, seed=99), LAYERS),
        (torch.cat([row(stream, 0, 200), random_tokens(1, 200, seed=99)]), LAYERS),
        (row(stream, 0, 200), (2,)),
    ):
        target.outputs(ids, layers)
        assert sizes.pop() == (*ids.shape, len(layers))


def test_only_what_is_missing_is_computed(tmp_path, target, stream_and_starts, monkeypatch):
    kept(tmp_path / "kept", target, stream_and_starts)
    sizes = calls_of(target, monkeypatch)
    kept(tmp_path / "kept", target, stream_and_starts)
    assert sizes == []
    found = kept(tmp_path / "kept", target, stream_and_starts, (1, 2))
    assert sizes
    assert {layers for *_, layers in sizes} == {1}
    ids = row(stream_and_starts[0], 0, 200)
    expected = target.read(ids, (1, 2))[0]
    torch.testing.assert_close(found.outputs(ids, (1, 2)).features, expected, rtol=1e-2, atol=1e-3)


def test_what_was_read_stays_when_a_run_is_stopped(
    tmp_path, target, stream_and_starts, monkeypatch
):
    monkeypatch.setattr(keep_outputs, "_AT_ONCE", 400)
    monkeypatch.setattr(keep_outputs, "_SAVE_EVERY", 1)
    whole = kept(tmp_path / "whole", target, stream_and_starts)
    sizes = calls_of(target, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(target, "computed", stopped_after(2, target.computed))
        with pytest.raises(KeyboardInterrupt):
            kept(tmp_path / "kept", target, stream_and_starts)
    first = len(sizes)
    outputs = kept(tmp_path / "kept", target, stream_and_starts)
    num_batches = len(keep_outputs._batches(stream_and_starts[0], 512))
    assert first == 2
    assert len(sizes) == num_batches > 3
    ids = row(stream_and_starts[0], 0, 200)
    for name in ("features", "hidden", "log_sums"):
        again, once = (getattr(o.outputs(ids, LAYERS), name) for o in (outputs, whole))
        assert torch.equal(again, once)


@pytest.mark.parametrize("kind", ["dspark", "dflash", "eagle3"])
def test_losses_are_those_of_what_is_computed(tmp_path, target, stream_and_starts, kind):
    """A cut vocabulary, so that the sums over all tokens are made use of."""
    ids = torch.arange(3, 103) * 2
    objective = make_objective(target, kind, "--draft-vocab", "100", draft_ids=ids)
    stream, starts = stream_and_starts
    batch = BatchSource({"chat": stream}, 0, starts={"chat": starts[:1]}).next(1, 192)
    torch.manual_seed(5)
    expected = objective.loss(*batch)
    layers = objective.drafter.spec.feature_layers
    target.kept = kept(tmp_path / "kept", target, stream_and_starts, layers)
    torch.manual_seed(5)
    torch.testing.assert_close(objective.loss(*batch), expected, rtol=2e-3, atol=2e-3)


def test_distributions_need_only_the_tokens_that_are_drafted(target):
    vocabulary = DraftVocabulary(target, torch.arange(VOCAB - 60, VOCAB))
    hidden = torch.randn(3, 4, target.spec.hidden_size)
    known, others = vocabulary.target_probs(hidden, target.log_sums(hidden))
    expected, expected_others = vocabulary.target_probs(hidden)
    torch.testing.assert_close(known, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(others, expected_others, rtol=1e-4, atol=1e-5)


def test_tokens_that_only_pad_the_vocabulary_are_never_drafted(target):
    target.spec = target.model.config = replace(target.spec, tokenizer_size=VOCAB - 20)
    vocabulary = DraftVocabulary(target, torch.arange(VOCAB - 60, VOCAB))
    hidden = torch.randn(4, target.spec.hidden_size)
    known, _ = vocabulary.target_probs(hidden, target.log_sums(hidden))
    assert (known[:, :40] > 0).all()
    assert not known[:, 40:].any()


def test_a_disk_that_is_too_small_is_told(tmp_path, target, stream_and_starts, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 1000))
    with pytest.raises(InvalidField, match=r"--keep-outputs: .* GB are needed in .*--work names"):
        kept(tmp_path / "kept", target, stream_and_starts)
    monkeypatch.undo()
    kept(tmp_path / "kept", target, stream_and_starts)


def test_text_that_never_comes_again_is_refused():
    with pytest.raises(InvalidField, match=r"--keep-outputs: .*give --data"):
        keep_outputs.refuse_other_text(arguments("dspark", "--keep-outputs"))


def test_a_language_model_that_is_not_distilled_is_refused():
    flags = argparse.Namespace(keep_outputs=True, data="chats", distill=0.0)
    with pytest.raises(InvalidField, match=r"--keep-outputs: .*--distill"):
        keep_outputs.refuse_other_text(flags)
    flags.distill = 0.5
    keep_outputs.refuse_other_text(flags)


def test_rows_of_short_chats_are_found(tmp_path, target):
    store = ChatStore(tmp_path)
    chats = [Exchange(n, 0.0, [9] * 8, random_tokens(24, seed=n).tolist()) for n in range(200)]
    store.add(200, chats, VOCAB)
    source = text_source.chats(tmp_path, VOCAB)
    (stream,), (starts,) = source.training.values(), source.starts.values()
    found = kept(tmp_path / "kept", target, (stream, starts))
    for length in (64, 128):
        assert found.outputs(row(stream, 0, length), LAYERS) is not None


def test_requests_beyond_the_targets_context_are_read_in_pieces(tmp_path, target):
    tokens = random_tokens(1300).tolist()
    stream, starts = stream_of([Exchange(0, 0.0, tokens[:20], tokens[20:])])
    assert keep_outputs.requests_of(stream, 512) == [(0, 512), (512, 1024), (1024, 1300)]
    found = kept(tmp_path / "kept", target, (stream, starts)).outputs(row(stream, 512, 256), LAYERS)
    expected = target.computed(row(stream, 512, 256), LAYERS)
    torch.testing.assert_close(found.hidden, expected.hidden, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["hidden", "log-sums", "layer-1"])
def test_an_array_that_is_cut_off_or_of_another_form_is_made_anew(
    tmp_path, target, stream_and_starts, name
):
    whole = kept(tmp_path / "kept", target, stream_and_starts)
    ids, path = row(stream_and_starts[0], 0, 200), tmp_path / "kept" / f"{name}.npy"
    expected = whole.outputs(ids, LAYERS)
    np.save(tmp_path / "other.npy", np.zeros((2, 3), np.float16))
    for content in (path.read_bytes()[:-1], (tmp_path / "other.npy").read_bytes(), b""):
        path.unlink()  # not written over: it is mapped
        path.write_bytes(content)
        found = kept(tmp_path / "kept", target, stream_and_starts).outputs(ids, LAYERS)
        for part in ("features", "hidden", "log_sums"):
            assert torch.equal(getattr(found, part), getattr(expected, part))


def test_an_unfinished_array_that_is_lost_is_no_zeros(
    tmp_path, target, stream_and_starts, monkeypatch
):
    monkeypatch.setattr(keep_outputs, "_AT_ONCE", 400)
    monkeypatch.setattr(keep_outputs, "_SAVE_EVERY", 1)
    with monkeypatch.context() as patch:
        patch.setattr(target, "log_sums", stopped_after(2, target.log_sums))
        with pytest.raises(KeyboardInterrupt):
            kept(tmp_path / "kept", target, stream_and_starts)
    (tmp_path / "kept" / "unfinished" / "log-sums.npy").unlink()
    found = kept(tmp_path / "kept", target, stream_and_starts)
    for start, end in keep_outputs.requests_of(stream_and_starts[0], 512):
        if start in stream_and_starts[1]:
            ids = row(stream_and_starts[0], start, min(end - start, 200))
            assert found.outputs(ids, LAYERS).log_sums.all()


def test_the_room_on_disk_is_taken_before_anything_is_read(
    tmp_path, target, stream_and_starts, monkeypatch
):
    """Or a disk that others fill meanwhile ends the process by a signal."""
    monkeypatch.setattr(target, "computed", stopped_after(0, target.computed))
    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path / "kept", target, stream_and_starts)
    arrays = list((tmp_path / "kept" / "unfinished").glob("*.npy"))
    assert len(arrays) == 4
    for path in arrays:
        found = path.stat()
        assert found.st_blocks * 512 >= found.st_size


def test_a_file_that_may_not_become_so_large_is_told(tmp_path, target, stream_and_starts):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(InvalidField, match=r"--keep-outputs: .*unfinished.*--work names"):
            kept(tmp_path / "kept", target, stream_and_starts)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "kept" / "unfinished").exists()


def test_requests_that_begin_alike_have_their_own(tmp_path, target):
    same, own = random_tokens(160, seed=1).tolist(), random_tokens(20, 40, seed=2).tolist()
    chats = stream_of([Exchange(n, 0.0, same, ids) for n, ids in enumerate(own)])
    outputs = kept(tmp_path / "kept", target, chats)
    for start in chats[1][::7].tolist():
        ids = row(chats[0], start, 200)
        expected = target.computed(ids, LAYERS).hidden
        torch.testing.assert_close(
            outputs.outputs(ids, LAYERS).hidden, expected, rtol=1e-3, atol=1e-3
        )


class Of16Bits(TorchBackend):
    """What GPUs do, on a CPU: products of 16 bits, which take no others."""

    def target_parts(self, dtype: torch.dtype, **_: object) -> TorchParts:
        return TorchParts(dtype=dtype, device=self.device, deterministic=False)


@pytest.mark.parametrize("num_drafted", [100, VOCAB])
def test_a_target_of_16_bits_takes_what_is_kept_of_it(
    tmp_path, target, stream_and_starts, monkeypatch, num_drafted
):
    monkeypatch.setattr(frozen_target, "choose_backend", Of16Bits)
    target = FrozenTarget(target.folder, dtype=torch.bfloat16)
    vocabulary = DraftVocabulary(target, torch.arange(num_drafted) if num_drafted < VOCAB else None)
    ids = row(stream_and_starts[0], 0, 200)
    expected = target.outputs(ids, LAYERS)
    target.kept = kept(tmp_path / "kept", target, stream_and_starts)
    found = target.outputs(ids, LAYERS)
    assert found.log_sums is not None
    for part in ("features", "hidden"):
        # Several rows at once are other sums.
        torch.testing.assert_close(
            getattr(found, part), getattr(expected, part), rtol=2e-2, atol=2e-2
        )
    torch.testing.assert_close(
        vocabulary.target_probs(found.hidden, found.log_sums)[0],
        vocabulary.target_probs(expected.hidden)[0],
        rtol=5e-2,
        atol=1e-3,
    )
