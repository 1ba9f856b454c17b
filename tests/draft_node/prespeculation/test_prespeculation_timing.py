"""What is drafted when: the time until the target looks, rows that wait, reports out of order."""

import pytest

from draft_node.prespeculation import draft_batches
from specserve.transport.link.messages import Report
from tests.backends.chosen import BACKEND
from tests.draft_node.prespeculation.rounds import (
    END,
    TEXT,
    Rounds,
    blocks_of,
    language_model,
    pending_of,
)


class Clock:
    """In place of `time`: a draft batch takes a millisecond a block."""

    def __init__(self, monkeypatch, rounds):
        self.now_s = 100.0
        monkeypatch.setattr("draft_node.prespeculation.prespeculation.time", self)
        draft = rounds.prespeculation._draft_batches.draft

        def slow(branches, *limits):
            self.now_s += 0.001 * len(branches)
            return draft(branches, *limits)

        monkeypatch.setattr(rounds.prespeculation._draft_batches, "draft", slow)

    def perf_counter(self):
        return self.now_s


@pytest.mark.parametrize("method", ["coupled", "foreseeable"])
def test_draft_batches_are_as_large_as_the_time_until_the_target_looks(
    dspark_drafter, monkeypatch, method
):
    rounds = Rounds(dspark_drafter, draft_batch=8, fan_out=40)
    clock = Clock(monkeypatch, rounds)
    pending_of(rounds, method=method)
    rounds.finish()  # nobody said how long: draft batches are whole, and teach what a block costs
    assert {len(push.keys) for push in rounds.pushes} == {8}
    for number, round_latency_s in enumerate((0.030, 0.0125, 0.003)):
        rounds.pushes.clear()
        row = rounds.row(TEXT, round=3 + number, awaits=True, method=method)
        rounds.prespeculation.take(row)
        rounds.streams.extend(1000)
        rounds.prespeculation.step()
        (token_ids, _, _, speculation_id) = blocks_of(rounds.pushes)[(1, 3 + number, END, TEXT[-1])]
        fields = {"block": token_ids[:3], "speculation_id": speculation_id, "method": method}
        rounds.pushes.clear()
        row = rounds.row(TEXT, start=END, round=3 + number, **fields)
        rounds.prespeculation.take(row, round_latency_s)
        began_s = clock.now_s
        sizes = [len(push.keys) for push in rounds.finish()]
        assert sizes
        if round_latency_s > 0.003:
            assert clock.now_s - began_s <= round_latency_s
            assert sum(sizes) >= 1000 * round_latency_s / 2
        else:
            assert set(sizes) == {1}  # too little for what a batch is believed to cost: a small one


def test_a_draft_batch_in_which_something_was_recorded_is_no_time(dspark_drafter, monkeypatch):
    """It takes longer than it ever will again."""
    rounds = Rounds(dspark_drafter)
    Clock(monkeypatch, rounds)
    sizes, batches = rounds.prespeculation._sizes, rounds.prespeculation._draft_batches
    draft = batches.draft
    monkeypatch.setattr(BACKEND, "num_first_calls", 0)

    def recording(*args):
        BACKEND.num_first_calls += 1
        return draft(*args)

    batches.draft = recording
    pending_of(rounds)
    assert rounds.finish()
    assert sizes.least_s(1, needs_probs=False) == 0.0  # nobody knows
    batches.draft = draft
    pending_of(rounds, stream=2)
    assert rounds.finish()
    assert sizes.least_s(1, needs_probs=False) > 0


@pytest.mark.parametrize("awaits", [False, True])
def test_roots_behind_which_nothing_is_in_time_are_drafted_seldom_but_for_who_waits(
    dspark_drafter, monkeypatch, awaits
):
    rounds = Rounds(dspark_drafter, draft_batch=8, fan_out=40)
    Clock(monkeypatch, rounds)
    pending_of(rounds, method="foreseeable")
    rounds.finish()  # teaches what a block costs
    drafted: list[bool] = []
    for number in range(3, 27):
        before = rounds.prespeculation.cache.statistics.num_blocks
        row = rounds.row(TEXT, round=number, awaits=awaits, method="foreseeable")
        rounds.prespeculation.take(row, 0.0011)  # a batch takes as long
        rounds.streams.extend(1000)
        rounds.prespeculation.step()
        drafted.append(rounds.prespeculation.cache.statistics.num_blocks > before)
    assert drafted.count(True) == (24 if awaits else 3)


def believed(rounds, block_s):
    """What the start measured: blocks take so long."""
    for needs_probs in (False, True):
        for count in (1, 4, 16):
            rounds.prespeculation._sizes.observe(
                needs_probs=needs_probs, num_blocks=count, num_tokens=4, seconds=block_s * count
            )


@pytest.mark.parametrize("method", ["coupled", "foreseeable"])
def test_a_start_that_measured_too_much_is_corrected_though_all_rows_miss(
    dspark_drafter, monkeypatch, method
):
    """A block takes 1 ms, and was believed to take 30, more than the round has."""
    rounds = Rounds(dspark_drafter, draft_batch=8, fan_out=40)
    Clock(monkeypatch, rounds)
    believed(rounds, 0.03)
    num_pushes = 0
    for number in range(3, 100):
        rounds.prespeculation.take(rounds.row(TEXT, round=number, method=method), 0.018)
        rounds.streams.extend(1000)
        num_pushes += len(rounds.finish())
    assert num_pushes > 100


def test_of_many_rows_that_missed_as_many_have_a_block_as_there_is_time_for(
    dspark_drafter, monkeypatch
):
    rounds = Rounds(dspark_drafter, draft_batch=16, fan_out=4)
    Clock(monkeypatch, rounds)
    believed(rounds, 0.001)
    num_pushes = 0
    for number in range(3, 40):
        for stream in range(1, 13):
            row = rounds.row(TEXT, stream=stream, round=number, method="foreseeable")
            rounds.prespeculation.take(row, 0.012)
        rounds.streams.extend(100_000)
        num_pushes += len(rounds.finish())
    assert num_pushes > 30


@pytest.mark.parametrize("was_late", [False, True])
def test_what_became_of_blocks_says_how_much_of_a_round_is_drafted_in(drafter, was_late):
    rounds, shares = Rounds(drafter), []
    for stream in (1, 2, 3):
        block = pending_of(rounds, stream=stream, round_latency_s=0.5)
        found = blocks_of(rounds.finish())
        key = next(key for key in found if key.position == END + 1)
        speculation_id = 0 if was_late else found[key][3]
        shares.append((stream, key, speculation_id, block))
    before = rounds.prespeculation.deadline_margin.share
    # All rows of a report had the same round, which counts once.
    rows = [
        rounds.row([*TEXT, key.anchor_id], stream=stream, round=2, start=END, speculation_id=number)
        for stream, key, number, _ in shares
    ]
    rounds.prespeculation.take_report(Report(rows, 0.5))
    change = rounds.prespeculation.deadline_margin.share - before
    assert change == pytest.approx(-0.04 if was_late else 0.004)


def test_a_draft_batch_that_had_no_time_from_the_start_says_nothing_of_deadline_margin(drafter):
    rounds = Rounds(drafter)
    rounds.prespeculation._sizes.observe(
        needs_probs=False, num_blocks=4, num_tokens=4, seconds=50.0
    )
    pending_of(rounds, round_latency_s=0.5)
    key = next(key for key in blocks_of(rounds.finish()) if key.position == END + 1)
    before = rounds.prespeculation.deadline_margin.share
    row = rounds.row([*TEXT, key.anchor_id], round=2, start=END)  # verified without its block
    rounds.prespeculation.take_report(Report([row], 0.5))
    assert rounds.prespeculation.deadline_margin.share == before


def test_blocks_in_time_count_even_where_there_was_no_time(drafter):
    rounds = Rounds(drafter)
    rounds.prespeculation._sizes.observe(
        needs_probs=False, num_blocks=4, num_tokens=4, seconds=50.0
    )
    pending_of(rounds, round_latency_s=0.5)
    found = blocks_of(rounds.finish())
    key = next(key for key in found if key.position == END + 1)
    before = rounds.prespeculation.deadline_margin.share
    fields = {"round": 2, "start": END, "speculation_id": found[key][3]}
    row = rounds.row([*TEXT, key.anchor_id], **fields)
    rounds.prespeculation.take_report(Report([row], 0.5))
    assert rounds.prespeculation.deadline_margin.share > before


@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("block", [(), (3, 4, 5)], ids=["nothing in flight", "text in flight"])
def test_a_chain_that_only_tells_what_may_follow_is_short(drafter, awaits, block):
    """Behind pending tokens that are nobody's draft, a whole one may turn out to be equal."""
    rounds = Rounds(drafter)
    rounds.take(TEXT, awaits=awaits, block=block)
    assert rounds.prespeculation.step()
    is_short = drafter.stops_in_time and not awaits and not block
    assert len(rounds.prespeculation._rounds[1].block.token_ids) == (
        2 if is_short else drafter.gamma
    )


def test_a_round_of_unknown_length_says_nothing_of_deadline_margin(drafter):
    rounds = Rounds(drafter)
    pending_of(rounds)
    key = next(key for key in blocks_of(rounds.finish()) if key.position == END + 1)
    before = rounds.prespeculation.deadline_margin.share
    row = rounds.row([*TEXT, key.anchor_id], round=2, start=END)  # verified without its block
    rounds.prespeculation.take_report(Report([row], 0.5))
    assert rounds.prespeculation.deadline_margin.share == before


def test_less_of_a_round_is_drafted_in_after_late_blocks(dspark_drafter, monkeypatch):
    sizes = {}
    for share in (1.0, 0.5):
        rounds = Rounds(dspark_drafter, draft_batch=8, fan_out=40)
        clock = Clock(monkeypatch, rounds)
        rounds.prespeculation._sizes.observe(
            needs_probs=False, num_blocks=8, num_tokens=7, seconds=0.008
        )
        rounds.prespeculation.deadline_margin.share = share
        began_s = clock.now_s
        pending_of(rounds, round_latency_s=0.016)
        rounds.finish()
        sizes[share] = clock.now_s - began_s
        rounds.streams.free([1])
    assert sizes[0.5] < sizes[1.0]


def test_a_newer_report_drops_what_is_left_of_a_round(drafter):
    rounds = Rounds(drafter, draft_batch=2)
    pending_of(rounds)
    assert rounds.prespeculation.step()
    known = [*TEXT, 11]
    rounds.take(known, start=END, round=2)
    assert {key.round for key in blocks_of(rounds.finish())} == {3}


def test_an_older_report_changes_nothing(drafter):
    rounds = Rounds(drafter)
    rounds.take([*TEXT, 11], round=5)
    rounds.take(TEXT, round=4)
    assert {key.round for key in blocks_of(rounds.finish())} == {6}


def test_nothing_is_begun_while_the_target_waits_for_what_is_on_its_way(drafter):
    rounds = Rounds(drafter)
    pending_of(rounds)
    found = blocks_of(rounds.finish())
    key, (token_ids, _, _, speculation_id) = next(iter(found.items()))
    text = [*TEXT, *[0] * (key.position - END - 1), key.anchor_id]
    rounds.take(text, start=END, round=2, awaits=True)  # the push came a moment too late
    assert not rounds.prespeculation.step()
    fields = {"block": token_ids[:3], "speculation_id": speculation_id}
    rounds.take(text, start=key.position, round=2, **fields)
    assert rounds.prespeculation.step()


def test_what_found_no_room_in_the_ring_is_drafted_again_when_it_is_waited_for(drafter):
    rounds = Rounds(drafter)
    pending_of(rounds)
    send, lost = rounds.prespeculation._send_push, []
    rounds.prespeculation._send_push = lambda push: bool(lost.append(push))
    rounds.finish()
    key = lost[0].keys[0]
    rounds.prespeculation._send_push = send
    text = [*TEXT, *[0] * (key.position - END - 1), key.anchor_id]
    rounds.take(text, start=END, round=2, awaits=True)
    assert rounds.prespeculation.step()
    assert [found for push in rounds.pushes for found in push.keys] == [key]


def test_a_stream_that_falls_silent_holds_up_nobody(dspark_drafter, monkeypatch):
    rounds = Rounds(dspark_drafter, draft_batch=8, fan_out=40)
    clock = Clock(monkeypatch, rounds)
    rounds.prespeculation._sizes.observe(
        needs_probs=False, num_blocks=8, num_tokens=7, seconds=0.008
    )
    for stream, round_latency_s in ((1, 0.010), (2, 0.030)):
        rounds.take(TEXT, stream=stream, awaits=True)
        rounds.prespeculation.step()
        (block, _, _, speculation_id) = blocks_of(rounds.pushes)[(stream, 1, END, TEXT[-1])]
        rounds.pushes.clear()
        fields = {"stream": stream, "block": block[:3], "speculation_id": speculation_id}
        rounds.prespeculation.take(rounds.row(TEXT, start=END, **fields), round_latency_s)
        rounds.streams.extend(1000)
        rounds.prespeculation.step()
        if stream == 1:
            clock.now_s += 5.0  # never heard of again, with outcomes left that were due
    drafted = sum(len(push.keys) for push in rounds.finish())
    assert drafted >= 8  # of the second, after its first draft batch


def test_a_row_that_waits_is_answered_before_all_others(drafter):
    rounds = Rounds(drafter)
    rounds.take(TEXT, stream=1)
    rounds.take(TEXT, stream=2)
    rounds.take(TEXT, stream=3, awaits=True)
    assert rounds.prespeculation.step()
    assert [key.stream for push in rounds.pushes for key in push.keys] == [3]
    assert rounds.pushes[0].keys[0] == (3, 1, END, TEXT[-1])


def test_what_a_row_waited_for_is_followed_once_it_is_known_what_is_verified(drafter):
    rounds = Rounds(drafter)
    rounds.take(TEXT, awaits=True)
    assert len(blocks_of(rounds.finish())) == 1
    rounds.take(TEXT, start=END)  # it came too late, nothing is verified
    assert {key.position for key in blocks_of(rounds.finish())} == {END + 1}
    statistics = rounds.prespeculation.cache.statistics
    assert (statistics.num_misses, statistics.num_hits, statistics.num_late) == (1, 0, 0)


def look_after(rounds, report):
    """When the target looks; how much of the time until then is drafted in is counted alike."""
    rounds.prespeculation.take_report(report)
    now, share = rounds.prespeculation._rounds[1], rounds.prespeculation.deadline_margin.share
    assert now.due_s == pytest.approx(now.look_s - (1 - share) * report.round_latency_s)
    return now.look_s


def test_time_runs_from_when_a_report_was_sent(drafter, monkeypatch):
    rounds = Rounds(drafter)
    clock = Clock(monkeypatch, rounds)
    row = rounds.row(TEXT)
    assert look_after(rounds, Report([row], 0.5, clock.now_s - 0.2)) == pytest.approx(100.3)
    # Nobody said, or by a clock that is another machine's.
    for sent_s in (0.0, clock.now_s + 5, clock.now_s - 7):
        assert look_after(rounds, Report([row], 0.5, sent_s)) == pytest.approx(100.5)


def test_where_no_time_is_left_nobody_looks_again(drafter, monkeypatch):
    """A draft batch's size is found out once more, and not whenever the link is looked at."""
    rounds, sizes = Rounds(drafter, draft_batch=4, fan_out=40), [4, 0, 4, 0]
    asked = []
    for stream in (2, 3):
        pending_of(rounds, stream=stream)
    clock = Clock(monkeypatch, rounds)
    for stream, round_latency_s in ((2, 1.0), (3, 2.0)):
        now = rounds.prespeculation._rounds[stream]
        now.due_s = now.look_s = clock.now_s + round_latency_s
    monkeypatch.setattr(
        rounds.prespeculation._sizes,
        "size",
        lambda *_, **__: asked.append(0) or sizes[len(asked) - 1],
    )
    rounds.pushes.clear()
    assert rounds.prespeculation.step()
    assert rounds.prespeculation.step()  # for whoever has time left, at once
    assert {key.stream for key in rounds.pushes[1].keys} == {3}
    assert rounds.prespeculation._rounds[2].is_closed
    assert not rounds.prespeculation._rounds[3].is_closed
    assert not any(rounds.prespeculation.step() for _ in range(20))
    assert len(asked) == len(sizes)


@pytest.mark.parametrize("method", ["coupled", "foreseeable"])
def test_chains_without_confidences_are_as_long_as_there_is_time(target, method):
    """Nobody knows which of their tokens stand: time ends them, and nothing that was drafted."""
    rounds = Rounds(language_model(target, gamma=9), draft_batch=2, fan_out=2, usual_tokens=3)
    pending_of(rounds, method=method)
    assert {length for push in rounds.finish() for length in push.lengths} == {3}  # no time is told
    rounds.pushes.clear()
    pending_of(rounds, stream=2, method=method, round_latency_s=20)
    longest = max(length for push in rounds.finish() for length in push.lengths)
    assert longest == 9


def test_who_has_confidences_stays_at_the_usual_length_where_nobody_may_look(target, monkeypatch):
    monkeypatch.setattr(draft_batches, "_TOKENS_PER_S", 0.1)  # passes pay, however slow they are
    options = {"usual_tokens": 3, "most_tokens": 5, "goes_beyond": True}
    for method, most in (("foreseeable", 3), ("coupled", 5)):
        drafter = language_model(target, gamma=9)
        drafter.probs_confidence = lambda slot, logits: logits.new_full(logits.shape[:2], 0.99)
        rounds = Rounds(drafter, draft_batch=2, fan_out=2, **options)
        pending_of(rounds, method=method, round_latency_s=20)
        lengths = [n for push in rounds.finish() for n in push.lengths if len(push.keys) > 1]
        assert max(lengths) == most
