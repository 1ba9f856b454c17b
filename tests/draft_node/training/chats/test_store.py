"""Chats on disk, and the streams that training reads."""

import numpy as np
import pytest
import torch

from draft_node.training.batches import BatchSource, tokens_of
from draft_node.training.chats.store import ChatStore, Exchange, is_held_out, stream_of
from draft_node.training.text_source import chats
from specserve.errors import InvalidField

FIRST = Exchange(0, 0.0, [1, 2, 3], [4, 5])
SECOND = [Exchange(2, 0.5, [6], [7, 8, 9]), Exchange(2, 0.5, [6, 7, 8, 9, 1], [2])]


@pytest.mark.parametrize("vocab_size", [49_152, 151_936])
def test_what_is_added_is_there_for_whoever_comes_next(tmp_path, vocab_size):
    store = ChatStore(tmp_path)
    store.add(1, [FIRST], vocab_size)
    store.add(4, SECOND, vocab_size)  # of the chats 1 and 3 nothing came
    found = ChatStore(tmp_path)
    assert found.next_number == 4
    assert list(found.exchanges()) == [FIRST, *SECOND]
    with np.load(tmp_path / "chats-000001-000004.npz") as part:
        assert part["tokens"].dtype == (np.uint16 if vocab_size < 1 << 16 else np.int32)


def test_a_folder_without_a_part_in_the_middle_is_refused(tmp_path):
    store = ChatStore(tmp_path)
    for end in (1, 2, 3):
        store.add(end, [], 100)
    (tmp_path / "chats-000001-000002.npz").unlink()
    with pytest.raises(InvalidField, match="the chats 1 to 1 are missing"):
        ChatStore(tmp_path)


@pytest.mark.parametrize("change", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"no zip"])
def test_a_torn_part_is_refused_by_name(tmp_path, change):
    ChatStore(tmp_path).add(1, [FIRST], 100)
    path = tmp_path / "chats-000000-000001.npz"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InvalidField, match=f"--data: {path}: holds no chats"):
        list(ChatStore(tmp_path).exchanges())


def test_lengths_that_do_not_add_up_are_refused(tmp_path):
    ChatStore(tmp_path).add(1, [FIRST], 100)
    path = tmp_path / "chats-000000-000001.npz"
    with np.load(path) as part:
        arrays = dict(part)
    arrays["answer_lens"] = arrays["answer_lens"] + 1
    np.savez(path, **arrays)
    with pytest.raises(InvalidField, match="its lengths do not add up to its 5 tokens"):
        list(ChatStore(tmp_path).exchanges())


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("tokens", [[1, 2, 3, 4, 5]], "tokens are int64 of 2 dimensions"),
        ("tokens", [1.0, 2, 3, 4, 5], "tokens are float64 of 1 dimensions"),
        ("temperatures", [0], "temperatures are int64 of 1 dimensions"),
        ("numbers", [0, 1], "are not of one number of requests"),
        ("prompt_lens", 3, "prompt_lens are int64 of 0 dimensions"),
    ],
)
def test_arrays_of_another_kind_are_refused(tmp_path, name, value, problem):
    ChatStore(tmp_path).add(1, [FIRST], 100)
    path = tmp_path / "chats-000000-000001.npz"
    with np.load(path) as part:
        arrays = dict(part) | {name: np.asarray(value)}
    np.savez(path, **arrays)
    with pytest.raises(InvalidField, match=problem):
        list(ChatStore(tmp_path).exchanges())


def test_answers_stand_as_they_are_and_questions_as_complements():
    stream, starts = stream_of([FIRST, *SECOND])
    assert stream.tolist() == [~1, ~2, ~3, 4, 5, ~6, 7, 8, 9, ~6, ~7, ~8, ~9, ~1, 2]
    assert starts.tolist() == [0, 5, 9]
    assert tokens_of(torch.from_numpy(stream)).tolist() == [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        9,
        6,
        7,
        8,
        9,
        1,
        2,
    ]


def test_windows_begin_inside_long_requests_too():
    exchanges = [Exchange(0, 1.0, [1] * 300, [2] * 400), Exchange(1, 1.0, [3] * 10, [4] * 250)]
    assert stream_of(exchanges)[1].tolist() == [0, 256, 512, 700]


def test_every_kind_of_chat_is_held_out_and_whole():
    held_out = {n for n in range(4000) if is_held_out(Exchange(n, 0.0, [1], [2]))}
    assert 150 < len(held_out) < 250
    assert all(sum(n % 4 == kind for n in held_out) > 30 for kind in range(4))
    assert all(
        is_held_out(Exchange(n, 1.0, [1, 2, 3, 4], [5])) == (n in held_out) for n in range(4000)
    )


def test_rows_begin_where_requests_do_and_every_request_begins_one(tmp_path):
    exchanges = [Exchange(n, 1.0, [n] * 3, [n] * (5 + n % 4)) for n in range(40)]
    stream, starts = stream_of(exchanges)
    source = BatchSource({"chat": stream}, 0, starts={"chat": starts[:-2]})
    ids, labels = source.next(38, 12)
    firsts = [row[0] for row in ids.tolist()]
    assert sorted(firsts) == list(range(38))
    assert source.epochs("chat") == 1
    row = firsts.index(0)
    assert ids[row].tolist() == [0] * 8 + [1] * 4
    assert labels[row].tolist() == [~0, ~0, *[0] * 5, ~1, ~1, ~1, 1, 1]


def test_chats_are_split_by_number_and_checked_against_the_target(tmp_path):
    exchanges = [Exchange(n, 0.0, [n] * 40, [n] * 100) for n in range(200)]
    ChatStore(tmp_path).add(200, exchanges, 200)
    source = chats(tmp_path, 200)
    training, held_out = (
        set(tokens_of(torch.from_numpy(streams["chat"])).tolist())
        for streams in (source.training, source.held_out)
    )
    assert not training & held_out
    assert held_out == {e.number for e in exchanges if is_held_out(e)}
    starts = {name: found.tolist() for name, found in source.starts.items()}
    assert starts == {"chat": list(range(0, len(source.training["chat"]), 140))}
    with pytest.raises(InvalidField, match="the target has no token 199"):
        chats(tmp_path, 199)


def test_too_few_chats_none_and_no_folder_are_refused(tmp_path):
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(InvalidField, match=r"--data: .*empty has no chats; specserve train data"):
        chats(empty, 200)
    with pytest.raises(InvalidField, match=r"--data: .*nowhere is no folder; specserve train data"):
        chats(tmp_path / "nowhere", 200)
    ChatStore(empty).add(1, [Exchange(0, 1.0, [1, 2], [3, 4])], 200)
    with pytest.raises(InvalidField, match="tokens are too few for training, 1024 needed"):
        chats(empty, 200)


def test_chats_whose_held_out_windows_have_no_answer_are_refused(tmp_path):
    held_out = next(n for n in range(99) if is_held_out(Exchange(n, 1.0, [1], [2])))
    exchanges = [Exchange(n, 1.0, [1] * 300, [2] * 100) for n in range(held_out + 1)]
    ChatStore(tmp_path).add(held_out + 1, exchanges, 200)
    with pytest.raises(InvalidField, match=r"no answer in what is held out.*train data writes"):
        chats(tmp_path, 200)


def test_who_has_too_little_held_out_is_told_how_many_tokens_will_do(tmp_path):
    store = ChatStore(tmp_path)
    store.add(8, [Exchange(n, 0.0, (1,) * 100, (2,) * 290) for n in range(8)], 100)
    said = "0 tokens held out .* 256 needed; .* --tokens 13000 should do"  # chat 30 is the first
    with pytest.raises(InvalidField, match=said):
        chats(tmp_path, 100)
    store.add(31, [Exchange(n, 0.0, (1,) * 100, (2,) * 290) for n in range(8, 31)], 100)
    assert len(chats(tmp_path, 100).held_out["chat"]) == 390
