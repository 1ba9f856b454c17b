"""Contexts that catch up in pieces, in any order, with holes, differences and too little memory."""

import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from draft_node.draft_slot import ASK_AGAIN_S, GRACE_S, Hole, Segment
from draft_node.draft_slots import IDLE_ROUNDS, DraftSlots
from specserve.drafters.context import ContextCapacity, ContextRows
from specserve.drafters.language_model import LanguageModelDrafter
from specserve.drafters.protocol import DraftBatch
from specserve.sampling.draft_sampler import Greedy
from tests.backends.chosen import BACKEND
from tests.draft_node.prespeculation.rounds import (
    CPU,
    Rounds,
    dspark,
    features_of,
    language_model,
    tokens,
)
from tests.specserve.drafters.checkpoints import DFLASH, DSPARK, make_drafter
from tests.specserve.models.checkpoints import load

TEXT = tokens(40).tolist()


@pytest.fixture
def drafter(target, tmp_path):
    return dspark(tmp_path / "draft", target)


@pytest.fixture
def streams(drafter):
    return DraftSlots(drafter, dtype=torch.float32, device=CPU)


def segment(start, end, text=TEXT):
    part = np.array(text[start:end], dtype=np.int32)
    return Segment(start, part, features_of(part, start))


def row(drafter, known, **fields):
    return Rounds(drafter).row(known, **fields)


def asked_at(streams, *times_s):
    return [streams.holes(now_s) for now_s in times_s]


def entries(drafter, stream):
    return drafter.context.read(stream, 0)[0]


def test_pieces_in_any_order_make_the_context_that_one_piece_makes(streams, drafter):
    streams.take_context(1, segment(0, 40))
    for start, end in ((20, 31), (5, 12), (0, 6), (30, 40), (11, 22)):
        streams.take_context(2, segment(start, end))
    while streams.extend(7):
        pass
    assert drafter.context_len(1) == drafter.context_len(2) == 40
    torch.testing.assert_close(entries(drafter, 1), entries(drafter, 2))


def test_contexts_grow_by_no_more_than_they_are_allowed(streams, drafter):
    streams.take_context(1, segment(0, 40))
    streams.take_context(2, segment(0, 40))
    assert streams.extend(24) == 24
    assert drafter.context_len(1) + drafter.context_len(2) == 24
    assert streams.extend(100) == 56
    assert streams.extend(100) == 0


def test_a_round_waits_until_everything_before_its_anchor_is_there(streams, drafter):
    stream = streams.take_report(row(drafter, TEXT, start=30))
    streams.extend(100)
    assert not stream.is_current
    assert asked_at(streams, 0.0, GRACE_S, ASK_AGAIN_S) == [[], [Hole(1, 0, 30)], []]
    assert streams.holes(ASK_AGAIN_S * 2) == [Hole(1, 0, 30)]
    streams.take_context(1, segment(0, 20))
    streams.extend(100)
    assert asked_at(streams, ASK_AGAIN_S * 3, ASK_AGAIN_S * 4) == [[], [Hole(1, 20, 30)]]
    streams.take_context(1, segment(20, 30))
    streams.extend(100)
    assert stream.is_current
    assert drafter.context_len(1) == 39
    assert streams.holes(99.0) == []


def test_nothing_is_asked_for_a_stream_without_a_round(streams):
    streams.take_context(1, segment(10, 20))
    streams.extend(100)
    assert streams.holes(0.0) == []


def test_what_differs_is_replaced_from_the_first_difference_on(streams, drafter):
    other = [*TEXT[:17], *tokens(23, seed=9).tolist()]
    streams.take_context(1, segment(0, 40, other))
    streams.take_context(2, segment(0, 40))
    streams.extend(100)
    streams.take_context(1, segment(10, 40))
    streams.extend(100)
    assert streams.find(1).token_ids == TEXT
    torch.testing.assert_close(entries(drafter, 1), entries(drafter, 2))


def test_an_older_report_is_ignored_and_one_of_the_same_round_is_not(streams, drafter):
    assert streams.take_report(row(drafter, TEXT, round=5)) is not None
    assert streams.take_report(row(drafter, TEXT[:30], round=4)) is None
    again = streams.take_report(row(drafter, TEXT, round=5, block=[3]))
    assert again.report.block.tolist() == [3]


def test_branch_numbers_rise_within_a_round_even_if_the_context_is_lost(streams, drafter):
    stream = streams.take_report(row(drafter, TEXT, round=5))
    assert [stream.next_branch(6) for _ in range(3)] == [1, 2, 3]
    assert stream.next_branch(5) == 1
    streams._drop_context(stream)
    streams.take_report(row(drafter, TEXT, round=6))
    assert streams.find(1).next_branch(6) == 4
    assert list(stream.num_branches) == [6]


def test_pending_tokens_enter_and_leave_a_context_of_token_ids(target):
    drafter = language_model(target)
    streams = DraftSlots(drafter, dtype=torch.float32, device=CPU)
    stream = streams.take_report(row(drafter, TEXT[:20], round=1))
    streams.extend(100)
    streams.provide([(stream, [TEXT[19], 1, 2, 3])])
    assert drafter.context_len(1) == 23
    assert stream.num_verified == 19
    assert stream.is_current
    # The target accepted 1 and took TEXT[20] instead of 2: only that is new.
    lengths = []
    extend = drafter.extend
    drafter.extend = lambda update: lengths.append(list(update.counts)) or extend(update)
    known = [*TEXT[:20], 1, TEXT[20]]
    streams.take_report(row(drafter, known, start=19, round=2))
    streams.extend(100)
    streams.provide([(stream, [TEXT[20], 7])])
    assert lengths == [[2]]
    assert stream.token_ids == [*known, 7]

    whole = language_model(target)
    fresh = DraftSlots(whole, dtype=torch.float32, device=CPU)
    token_ids = np.array([*known, 7], dtype=np.int32)
    fresh.take_context(1, Segment(0, token_ids, np.empty((len(token_ids), 0), np.float32)))
    fresh.extend(100)
    torch.testing.assert_close(entries(drafter, 1), entries(whole, 1), atol=1e-5, rtol=1e-5)


IN_FLIGHT = [TEXT[19], 1, 2, 3]  # an anchor and the block behind it


@pytest.mark.parametrize("is_drafted", [True, False], ids=["drafted behind", "never used"])
@pytest.mark.parametrize("num_accepted", range(4))
@pytest.mark.parametrize("config", [DSPARK, DFLASH], ids=["dspark", "dflash"])
def test_features_take_the_place_of_pending_tokens(
    target, tmp_path, config, num_accepted, is_drafted
):
    """Those that stand, too: the context is the one that verified tokens alone would have made."""
    drafter = make_drafter(tmp_path / "draft", config, target)
    streams = DraftSlots(drafter, dtype=torch.float32, device=CPU)
    stream = streams.take_report(row(drafter, TEXT[:20], round=1))
    streams.extend(100)
    streams.provide([(stream, IN_FLIGHT)])
    if is_drafted:  # which computes their entries
        drafter.draft(DraftBatch([1], torch.tensor([7]), context_lens=[23]), Greedy())
    known = [*TEXT[:19], *IN_FLIGHT[: 1 + num_accepted], 9]
    streams.take_report(row(drafter, known, start=19, round=2))
    while streams.extend(2):  # in pieces
        pass
    assert stream.is_current
    assert stream.token_ids == known[:-1]

    streams.take_context(2, segment(0, len(known) - 1, known))
    streams.extend(100)
    for layer in range(drafter.backbone.spec.decoder.num_layers):
        for ours, expected in zip(
            drafter.context.read(1, layer), drafter.context.read(2, layer), strict=True
        ):
            torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-5)
    batch = DraftBatch([1, 2], torch.tensor([9, 9]), keep_logits=True)
    drawn = drafter.draft(batch, Greedy())
    torch.testing.assert_close(drawn.logits[0], drawn.logits[1], atol=1e-5, rtol=1e-5)
    assert drawn.token_ids[0].tolist() == drawn.token_ids[1].tolist()


@pytest.fixture
def small(target):
    """Room for 64 tokens."""
    return LanguageModelDrafter(
        load(target.folder), backend=BACKEND, gamma=2, num_context_tokens=64
    )


def bare(start, end):
    part = np.array(TEXT[start:end], dtype=np.int32)
    return Segment(start, part, np.empty((len(part), 0), np.float32))


def test_a_stream_without_memory_is_left_alone_until_another_ends(small, caplog):
    streams = DraftSlots(small, dtype=torch.float32, device=CPU)
    for number in (1, 2):
        streams.take_report(row(small, TEXT, stream=number, round=1))
    streams.extend(100)
    starved = [each for each in streams if each.is_starved]
    assert len(starved) == 1
    assert "a row is decoded without drafts" in caplog.text
    number = starved[0].number
    streams.take_report(row(small, [*TEXT, 3], start=39, stream=number, round=2))
    assert asked_at(streams, 0.0, 1.0) == [[], []]
    streams.free([3 - number])
    assert asked_at(streams, 1.0, 2.0) == [[], [Hole(number, 0, 40)]]
    streams.take_context(number, bare(0, 40))
    streams.extend(100)
    assert streams.find(number).is_current


@pytest.mark.parametrize(
    ("wish", "grown"), [("for what they have", 0), ("for all that they may have", 15)]
)
def test_a_shortage_names_the_setting_and_a_value_that_would_do(target, caplog, wish, grown):
    """24 rows share a prefix in the target's cache, whose blocks are too few without it."""
    lengths = [25 + place % 8 for place in range(24)]

    def num_starved(num_tokens: int, more: int = 0) -> int:
        drafter = LanguageModelDrafter(
            load(target.folder), backend=BACKEND, gamma=2, num_context_tokens=num_tokens
        )
        capacity = ContextCapacity(num_tokens, 2**20, max_len=40)  # a MiB each
        streams = DraftSlots(drafter, dtype=torch.float32, device=CPU, capacity=capacity)
        for number, length in enumerate(lengths):
            known = TEXT[: min(length + more, 40)]
            streams.take_report(row(drafter, known, stream=number, round=1))
        while streams.extend(64):
            pass
        return sum(stream.is_starved for stream in streams)

    assert num_starved(600) > 0
    (line,) = caplog.messages
    assert "draft contexts hold 600; set engine.kv_memory=" in line
    assert "(model.max_model_len=40)" in line
    found = re.search(rf"(\d+)MiB {wish}", line)
    assert found is not None
    assert num_starved(int(found[1]), grown) == 0
    assert num_starved(int(found[1]) - 32, grown) > 0


def test_contexts_that_nobody_reports_on_make_room_first(small):
    streams = DraftSlots(small, dtype=torch.float32, device=CPU)
    streams.take_report(row(small, TEXT, stream=1, round=1))
    streams.extend(100)
    for _ in range(2 * IDLE_ROUNDS + 1):
        streams.take_report(row(small, TEXT, stream=2, round=1))
    streams.extend(100)
    assert small.context_len(1) == 0
    assert streams.find(2).is_current
    assert not streams.find(1).is_starved


class Pages:
    """The memory of a drafter that computes nothing."""

    gamma, feature_size, holds_pending_tokens, stops_in_time = 2, 0, True, True

    def __init__(self, num_pages):
        self._rows = ContextRows(num_pages + 1)
        self.num_entered = 0

    def extend(self, update):
        self._rows.append(update.rows, update.starts, update.counts)
        self.num_entered += sum(update.counts)

    def truncate(self, row, length):
        self._rows.truncate(row, length)

    def free(self, row):
        self._rows.free(row)


@pytest.mark.parametrize("num_rows", [12, 100])
def test_rows_that_decode_keep_their_contexts_where_there_is_too_little_room(num_rows):
    """However many there are, and in whatever order they report."""
    pages = Pages(5 * (num_rows - 2))  # 5 are what a row of 64 to 80 tokens needs
    streams, sent, order = DraftSlots(pages, dtype=torch.float32, device=CPU), {}, random.Random(0)
    text, numbers = tokens(80), list(range(num_rows))
    entered = []
    for round_number in range(1, 13):
        order.shuffle(numbers)
        position = 66 + round_number
        for number in numbers:
            start = sent.get(number, 0)
            known = row(pages, text[: position + 1].tolist(), start=start, stream=number)
            streams.take_report(replace(known, round=round_number))
            sent[number] = position
        pages.num_entered = 0
        streams.extend(100_000)
        entered.append(pages.num_entered)
        for hole in streams.holes(float(round_number)):
            sent[hole.stream] = min(sent[hole.stream], hole.start)
    assert streams.failures.total == 0
    assert sum(stream.is_current for stream in streams) == num_rows - 2
    assert max(entered[1:]) == num_rows - 2  # one token a row, nothing read again


def test_for_each_end_a_few_starved_streams_try_again_in_turn(target):
    small = LanguageModelDrafter(
        load(target.folder), backend=BACKEND, gamma=2, num_context_tokens=64
    )
    streams = DraftSlots(small, dtype=torch.float32, device=CPU)
    for number in range(1, 6):
        streams.take_report(row(small, TEXT, stream=number, round=1))
    streams.extend(300)
    assert [stream.number for stream in streams if stream.is_starved] == [2, 3, 4, 5]
    streams.free([1])
    assert [stream.number for stream in streams if stream.is_starved] == [4, 5]
    for number in (2, 3):
        streams.take_report(row(small, TEXT, stream=number, round=2))
    streams.extend(300)
    assert [stream.number for stream in streams if stream.is_starved] == [4, 5, 3]
    streams.free([4])  # it had no context, and others may have become shorter: they try
    assert [stream.number for stream in streams if stream.is_starved] == []


def test_what_continues_a_context_that_made_room_for_another_is_left_out():
    pages = Pages(8)
    streams, text = DraftSlots(pages, dtype=torch.float32, device=CPU), tokens(80).tolist()
    streams.take_context(1, bare(0, 0))  # the first in line
    streams.take_report(row(pages, text[:60], start=0, stream=2))
    for _ in range(4 * IDLE_ROUNDS):
        streams.take_report(row(pages, text[:60], start=0, stream=3))
    streams.extend(1000)
    streams.find(2).segments = [Segment(59, np.array(text[59:70], np.int32), np.empty((11, 0)))]
    streams.take_context(1, bare(0, 30))
    streams.extend(1000)
    assert streams.failures.total == 0
    assert [len(stream.token_ids) for stream in streams] == [30, 0, 59]


def test_a_context_that_cannot_be_read_is_started_anew(streams, drafter, caplog):
    extend = drafter.extend

    def fail(update):
        extend(update)
        raise RuntimeError("broken")

    drafter.extend = fail
    stream = streams.take_report(row(drafter, TEXT, round=1))
    streams.extend(100)
    assert "reading a context failed, time 1" in caplog.text
    drafter.extend = extend
    streams.take_report(row(drafter, [*TEXT, 3], start=39, round=2))
    assert asked_at(streams, 0.0, 1.0) == [[], [Hole(1, 0, 39)]]
    streams.take_context(1, segment(0, 40))
    streams.extend(100)
    assert stream.is_current
    assert drafter.context_len(1) == 40


def test_a_hole_that_is_being_filled_is_not_asked_for_again(streams, drafter):
    streams.take_report(row(drafter, TEXT, start=39))
    streams.holes(0.0)
    assert streams.holes(1.0) == [Hole(1, 0, 39)]
    for step in range(7):
        streams.take_context(1, segment(5 * step, 5 * step + 5))
        streams.extend(100)
        assert streams.holes(1.0 + 0.1 * step) == []
    assert streams.holes(2.5) == [Hole(1, 35, 39)]


def test_context_that_comes_just_after_the_report_was_never_missing(streams, drafter):
    stream = streams.take_report(row(drafter, TEXT, start=39))
    assert streams.holes(1.0) == []
    streams.take_context(1, segment(0, 39))
    streams.extend(100)
    assert streams.holes(1.0 + GRACE_S) == []
    assert stream.is_current


def test_streams_that_were_never_ended_do_not_pile_up(streams, drafter, monkeypatch):
    monkeypatch.setattr("draft_node.draft_slots.MAX_STREAMS", 3)
    for number in range(10):
        streams.take_context(number, segment(0, 10))
        streams.extend(100)
        streams.free(streams.surplus())
    assert [stream.number for stream in streams] == [7, 8, 9]
    assert [drafter.context_len(number) for number in range(5, 10)] == [0, 0, 10, 10, 10]
