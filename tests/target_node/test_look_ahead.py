"""Rounds that are made while the one before runs are those that would have been made after it."""

import random
import time

import pytest

from specserve.drafters.ngram import NgramDrafter
from specserve.types import Abort, StopSample, Submit
from target_node.scheduler import Scheduler
from tests.target_node.in_process import InProcessTarget, fixture_model, request
from tests.target_node.test_scheduler import finish_round, scheduler, sequence

GAMMA = 3


@pytest.fixture(scope="module")
def model():
    return fixture_model()


def played(model, seed: int, *, ahead: bool, num_blocks: int) -> tuple[list, dict, int, int]:
    """A random day: what every round did, all texts, how often rows gave way, rounds made ahead."""
    rng = random.Random(seed)
    target = InProcessTarget(
        model,
        num_blocks=num_blocks,
        max_batch_rows=rng.choice([3, 8]),
        max_batch_tokens=rng.choice([12, 64]),
        draft=NgramDrafter(gamma=GAMMA, shortest=1),
    )
    look_ahead = target.scheduler.look_ahead
    num_ahead = 0

    def looking(rows, gamma):
        nonlocal num_ahead
        if ahead:
            look_ahead(rows, gamma)
            num_ahead += bool(target.scheduler._ahead)

    target.scheduler.look_ahead = looking
    rounds, names = [], [f"r{number}" for number in range(24)]
    for _ in range(160):
        if names and rng.random() < 0.3:
            tokens = [rng.randrange(3, 9) for _ in range(rng.randint(1, 30))]
            fields = {"max_tokens": rng.randint(1, 30), "n": rng.choice([1, 1, 2])}
            temperature = rng.choice([0.0, 1.0])
            target.control.inbox.append(
                Submit(request(names.pop(), tokens, temperature=temperature, **fields))
            )
        if rng.random() < 0.06:
            name = f"r{rng.randrange(24)}"
            has_begun = (name, 0) in target.tokens
            message = rng.choice([Abort(name), StopSample(name, 0)]) if has_begun else Abort(name)
            target.control.inbox.append(message)
        if rng.random() < 0.03 and target.scheduler.running:
            target.scheduler.redo(rng.choice(target.scheduler.running))
        target.turn()
        if target.node.rounds.records:
            record = target.node.rounds.records[-1]
            rounds.append(
                [(row.request_id, row.sample_index, row.verify_len) for row in record.rows]
            )
    target.run_until_idle()
    assert target.pool.num_free == target.pool.num_blocks
    return rounds, target.tokens, target.scheduler.num_preemptions, num_ahead


@pytest.mark.parametrize("num_blocks", [24, 60, 400])
@pytest.mark.parametrize("seed", range(3))
def test_texts_admissions_and_preemptions_are_those_of_the_sequential_loop(model, seed, num_blocks):
    found = played(model, seed, ahead=True, num_blocks=num_blocks)
    expected = played(model, seed, ahead=False, num_blocks=num_blocks)
    assert found[:3] == expected[:3]
    assert expected[3] == 0
    assert found[3] > 20 or num_blocks < 400


def started(subject: Scheduler, count: int, **fields) -> None:
    for arrival in range(count):
        subject.add(sequence(arrival, [5, 6, arrival], max_tokens=99, **fields))
    finish_round(subject, subject.next_batch())


def test_a_round_ahead_has_room_for_two_rounds_of_the_longest_blocks():
    subject = scheduler(64)
    started(subject, 2)
    rows = subject.next_batch()
    subject.look_ahead(rows, GAMMA)
    finish_round(subject, rows)
    ahead = subject.next_batch()
    assert [row.sequence for row in ahead] == [row.sequence for row in rows]
    assert [len(row.sequence.block_ids) for row in ahead] == [2, 2]  # five tokens, by fours
    assert subject.drafts_with_blocks(ahead, [GAMMA] * 2) == [GAMMA] * 2


@pytest.mark.parametrize(("num_blocks", "fits"), [(7, False), (8, True)])
def test_it_is_made_if_the_worst_case_fits_and_leaves_each_row_a_block(num_blocks, fits):
    """Two rows of a block, with eight tokens more each that take two: 2 + 4 + 2."""
    subject = scheduler(num_blocks)
    started(subject, 2)
    subject.look_ahead(subject.next_batch(), GAMMA)
    assert bool(subject._ahead) is fits
    assert subject.num_preemptions == 0


def test_who_has_ended_is_not_in_it():
    subject = scheduler()
    started(subject, 3)
    rows = subject.next_batch()
    subject.look_ahead(rows, GAMMA)
    finish_round(subject, rows)
    subject.remove(rows[1].sequence)
    assert [row.sequence for row in subject.next_batch()] == [rows[0].sequence, rows[2].sequence]


@pytest.mark.parametrize("happens", ["arrival", "redo"])
def test_what_comes_meanwhile_is_scheduled_in_sequence(happens):
    subject = scheduler(64)
    started(subject, 2)
    rows = subject.next_batch()
    subject.look_ahead(rows, GAMMA)
    finish_round(subject, rows)
    if happens == "arrival":
        subject.add(sequence(7, [9] * 4))
    else:
        subject.redo(rows[1].sequence)
    made = subject.next_batch()
    assert len(made) == (3 if happens == "arrival" else 2)


def test_prefixes_that_are_kept_do_not_stand_in_its_way_nor_leave_for_it():
    subject = scheduler(12)
    subject.add(sequence(0, [7] * 33, max_tokens=1))  # leaves eight blocks in the prefix cache
    finish_round(subject, subject.next_batch())
    started(subject, 2)
    rows, cached = subject.next_batch(), subject.pool.num_cached
    subject.look_ahead(rows, GAMMA)
    assert subject._ahead
    assert subject.pool.num_cached == cached == 8


def test_a_prompt_that_is_read_in_parts_is_never_ahead():
    subject = scheduler(tokens=16)
    subject.add(sequence(0, [5] * 40))
    rows = subject.next_batch()
    subject.look_ahead(rows, GAMMA)
    assert not subject._ahead


class Device:
    """Computes for a while after a forward was begun; whoever asks for its results waits."""

    def __init__(self, target: InProcessTarget, forward_s: float, host_s: float) -> None:
        self._done_s = 0.0
        forward, sample = target.runner.forward, target.sampler.sample
        look_ahead, decode_rows = target.scheduler.look_ahead, target.scheduler._decode_rows

        def begin(batch):
            logits = forward(batch)
            self._done_s = time.perf_counter() + forward_s
            return logits

        def wait(*args):
            time.sleep(max(0.0, self._done_s - time.perf_counter()))
            return sample(*args)

        def slowly(work, *args):
            time.sleep(host_s)
            return work(*args)

        target.runner.forward, target.sampler.sample = begin, wait
        target.scheduler.look_ahead = lambda *args: slowly(look_ahead, *args)
        target.scheduler._decode_rows = lambda: slowly(decode_rows)


def seconds_of(model, *, ahead: bool) -> float:
    target = InProcessTarget(model)
    Device(target, forward_s=0.02, host_s=0.01)
    if not ahead:
        target.scheduler.look_ahead = lambda *_: None
    target.submit(request("r", [5, 9, 3], temperature=0.0, max_tokens=60, ignore_eos=True))
    target.turn(10)
    began_s = time.perf_counter()
    target.turn(20)
    return time.perf_counter() - began_s


def test_what_is_made_ahead_takes_no_time_of_a_device(model):
    """A third of the round was the host's, and is none any more."""
    ratios = [seconds_of(model, ahead=True) / seconds_of(model, ahead=False) for _ in range(3)]
    assert min(ratios) < 0.8
