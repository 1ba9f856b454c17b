"""Admission, chunking and preemption, with a stand-in for the model: a row's tokens just count."""

import random

from specserve.types import FinishReason, Request, SamplingParams
from target_node.blocks import BlockPool
from target_node.scheduler import Row, Scheduler
from target_node.sequence import Sequence


def sequence(
    arrival: int, prompt: list[int], *, max_tokens: int = 8, priority: int = 0, **fields
) -> Sequence:
    sampling = SamplingParams(max_tokens=max_tokens, **fields)
    request = Request(
        request_id=f"r{arrival}",
        prompt_token_ids=prompt,
        sampling=sampling,
        seed=0,
        priority=priority,
    )
    return Sequence(request, sample_index=0, arrival=arrival)


def scheduler(num_blocks: int = 64, *, rows: int = 8, tokens: int = 32) -> Scheduler:
    pool = BlockPool(num_blocks + 1, 4, prefix_cache=True)
    return Scheduler(pool, max_batch_rows=rows, max_batch_tokens=tokens)


def finish_round(subject: Scheduler, rows: list[Row]) -> list[Sequence]:
    """Pretend to run `rows`; returns what finished."""
    finished = []
    for row in rows:
        subject.commit(row)
        if row.samples:
            row.sequence.token_ids.append(1)
            if row.sequence.num_generated >= row.sequence.request.sampling.max_tokens:
                row.sequence.finish_reason = FinishReason.LENGTH
                subject.remove(row.sequence)
                finished.append(row.sequence)
    return finished


def test_a_long_prompt_is_chunked_and_decoding_rows_keep_going_beside_it():
    subject = scheduler(tokens=16)
    subject.add(sequence(0, [5] * 4, max_tokens=20))
    finish_round(subject, subject.next_batch())
    subject.add(sequence(1, [6] * 40))
    counts = []
    for _ in range(4):
        rows = subject.next_batch()
        counts.append([(row.sequence.arrival, row.num_tokens, row.samples) for row in rows])
        finish_round(subject, rows)
    assert counts == [
        [(0, 1, True), (1, 15, False)],
        [(0, 1, True), (1, 15, False)],
        [(0, 1, True), (1, 10, True)],
        [(0, 1, True), (1, 1, True)],
    ]


def test_a_lower_priority_number_is_admitted_first_and_equals_go_by_arrival():
    subject = scheduler(rows=1)
    for arrival, priority in [(0, 5), (1, 0), (2, 0)]:
        subject.add(sequence(arrival, [arrival], max_tokens=1, priority=priority))
    order = []
    while rows := subject.next_batch():
        order += [finished.arrival for finished in finish_round(subject, rows)]
    assert order == [1, 2, 0]


def test_the_last_in_order_gives_way_and_resumes_with_all_its_tokens():
    subject = scheduler(num_blocks=8)
    first, last = sequence(0, [1] * 7, max_tokens=16), sequence(1, [2] * 7, max_tokens=16)
    subject.add(first)
    subject.add(last)
    finished = []
    for _ in range(200):
        rows = subject.next_batch()
        if not rows:
            break
        finished += finish_round(subject, rows)
    assert [s.arrival for s in finished] == [0, 1]
    assert first.num_preemptions == 0
    assert last.num_preemptions >= 1
    assert last.num_generated == 16
    assert subject.pool.num_free == 8


def test_who_is_urgent_gives_way_to_nobody_that_was_admitted_before():
    subject = scheduler(num_blocks=8)
    first = sequence(0, [1] * 7, max_tokens=16, priority=5)
    urgent = sequence(1, [2] * 7, max_tokens=16)
    subject.add(first)
    finish_round(subject, subject.next_batch())
    subject.add(urgent)
    finished = []
    while rows := subject.next_batch():
        finished += finish_round(subject, rows)
    assert [each.arrival for each in finished] == [1, 0]
    assert urgent.num_preemptions == 0 < first.num_preemptions


def test_a_prefix_is_not_evicted_to_make_room_for_the_row_that_found_it():
    subject = scheduler(num_blocks=6)
    before = list(range(10, 19)), list(range(30, 43))
    for arrival, prompt in enumerate(before):  # now no block is plainly free
        subject.add(sequence(arrival, prompt, max_tokens=1))
        while rows := subject.next_batch():
            finish_round(subject, rows)
    asking = sequence(2, [*before[0][:8], *range(50, 63)], max_tokens=1)
    subject.add(asking)
    subject.next_batch()
    assert asking.num_cached == 8
    assert len(set(asking.block_ids)) == len(asking.block_ids) == 6


def test_prompt_logprobs_are_owed_once_even_when_the_prompt_is_cached_or_preempted():
    subject = scheduler(tokens=8)
    subject.add(sequence(0, list(range(20)), max_tokens=1))
    while rows := subject.next_batch():
        finish_round(subject, rows)
    asking = sequence(1, list(range(20)), max_tokens=1, prompt_logprobs=0)
    subject.add(asking)
    seen = []
    for _ in range(4):
        (row,) = subject.next_batch()
        end = asking.num_computed + row.num_tokens
        positions = range(end - row.num_logits, end)
        owed = [p for p in positions if p < asking.num_prompt - 1]
        seen += owed
        asking.num_prompt_logprobs += len(owed)
        finish_round(subject, [row])
        if len(seen) == 8 and not asking.num_preemptions:
            subject.redo(asking)
    assert seen == list(range(19))


def test_random_load_never_deadlocks_never_leaks_and_every_sequence_completes():
    rng = random.Random(3)
    for _ in range(30):
        subject = scheduler(num_blocks=rng.randrange(12, 40), rows=rng.randrange(1, 9))
        todo = [
            sequence(
                i,
                [rng.randrange(2) for _ in range(rng.randrange(1, 20))],
                max_tokens=rng.randrange(1, 20),
                priority=rng.randrange(2),
            )
            for i in range(30)
        ]
        finished, alive = [], list(todo)
        for _ in range(5000):
            if todo and rng.random() < 0.3:
                subject.add(todo.pop())
            rows = subject.next_batch()
            assert sum(row.num_tokens for row in rows) <= subject.max_batch_tokens
            assert len(rows) <= subject.max_batch_rows
            owners = [
                block for s in subject.running for block in s.block_ids[s.num_computed // 4 :]
            ]
            assert len(owners) == len(set(owners)), "two sequences write one block"
            for row in rows:
                end = row.sequence.num_computed + row.num_tokens
                assert subject.pool.num_blocks_for(end) <= len(row.sequence.block_ids)
            finished += finish_round(subject, rows)
            if rng.random() < 0.01 and subject.running:
                victim = rng.choice(subject.running)
                victim.finish_reason = FinishReason.ABORT
                subject.remove(victim)
                finished.append(victim)
            if not todo and not subject.running and not subject.waiting:
                break
        assert len(finished) == len(alive)
        assert subject.pool.num_free == subject.pool.num_blocks


def test_a_sequence_that_the_cache_serves_wholly_decodes_in_the_round_that_admits_it():
    subject = scheduler()
    lone = sequence(0, [1, 2, 3], max_tokens=20)
    subject.add(lone)
    while len(lone.token_ids) != 9:
        finish_round(subject, subject.next_batch())
    subject.redo(lone)
    (row,) = subject.next_batch()
    assert lone.is_decoding
    assert (row.sequence, row.num_tokens, row.num_logits, row.samples) == (lone, 1, 1, True)


def test_a_sequence_that_waits_for_blocks_is_hashed_once(monkeypatch):
    subject = scheduler(num_blocks=12, tokens=64)
    subject.add(sequence(0, [*range(30)], max_tokens=9))
    finish_round(subject, subject.next_batch())
    waiting = sequence(1, [*range(28), *range(50, 70)])
    subject.add(waiting)
    hashed, child = [], subject.pool.child
    monkeypatch.setattr(
        subject.pool, "child", lambda parent, ids: hashed.append(ids) or child(parent, ids)
    )
    rows = subject.next_batch()
    assert len(rows) == 1
    assert len(hashed) == 8  # seven that are cached, and the first that is not
    for _ in range(3):
        subject.next_batch()
    assert len(hashed) == 8
    while subject.waiting:
        finish_round(subject, subject.next_batch())
    assert waiting.num_cached == 28


def test_who_waits_for_blocks_keeps_its_cached_prefix_for_longest():
    subject = scheduler(num_blocks=20, tokens=64)
    first = sequence(0, [*range(24)], max_tokens=1)
    subject.add(first)
    finish_round(subject, subject.next_batch())
    subject.add(sequence(1, [90] * 9, max_tokens=40))
    finish_round(subject, subject.next_batch())
    waiting = sequence(2, [*range(24), *range(50, 92)])
    subject.add(waiting)
    subject.add(sequence(3, [91] * 13, max_tokens=1))  # comes after the one that waits
    other = sequence(4, [92] * 13, max_tokens=1, priority=-1)
    subject.add(other)
    while subject.waiting:
        finish_round(subject, subject.next_batch())
    assert waiting.num_cached == 24


def test_no_block_is_lent_that_was_not_computed_to_its_end():
    """The KV of an anchor is yet to come: in its place may lie that of a rejected draft."""
    subject = scheduler()
    first = sequence(0, [5] * 4, max_tokens=20)
    subject.add(first)
    while len(first.token_ids) < 8:
        (row,) = subject.next_batch()
        first.token_ids.append(1)
        subject.commit(row)
    later = sequence(1, [*first.token_ids, 9])
    subject.add(later)
    subject.next_batch()
    assert (first.num_computed, later.num_cached) == (7, 4)


def test_drafts_have_the_places_that_prompts_leave():
    subject = scheduler(tokens=16)
    subject.add(sequence(0, [5] * 4, max_tokens=20))
    finish_round(subject, subject.next_batch())
    subject.add(sequence(1, [6] * 9))
    rows = subject.next_batch()
    assert [row.num_tokens for row in rows] == [1, 9]
    assert subject.room_for_drafts(rows) == 6


def test_a_round_that_is_done_again_is_another_one():
    """What its noise decided must not be decided by it once more."""
    subject, redone = scheduler(), sequence(0, [1, 2, 3])
    subject.add(redone)
    rounds = []
    for _ in range(3):
        subject.next_batch()
        rounds.append(redone.num_rounds)
        subject.redo(redone)
    assert len(set(rounds)) == 3
