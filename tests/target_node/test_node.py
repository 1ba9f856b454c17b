"""The target's loop: emission, ends, cancellation, isolation of failures, invariance of tokens."""

import json
import random
import time

import pytest
import torch

from specserve.types import (
    Abort,
    Drain,
    Drained,
    FinishReason,
    Load,
    Profile,
    Profiled,
    RequestEnd,
    RoundEvents,
    StopSample,
    Terminal,
)
from target_node.planning import profiling
from tests.target_node.in_process import InProcessTarget, fixture_model, request


@pytest.fixture(scope="module")
def model():
    return fixture_model()


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(4, 127) for _ in range(length)]


def test_a_request_is_emitted_token_by_token_and_ends_once(model):
    target = InProcessTarget(model)
    target.submit(request("a", prompt(9), max_tokens=5, ignore_eos=True, temperature=0.0))
    target.run_until_idle()
    assert len(target.tokens["a", 0]) == 5
    end = target.ends["a"]
    assert end.terminal is Terminal.FINISHED
    assert end.stats.num_prompt_tokens == 9
    assert end.stats.num_generated_tokens == 5
    assert target.pool.num_free == target.pool.num_blocks


@pytest.mark.slow
def test_tokens_do_not_depend_on_batch_chunk_preemption_or_prefix_cache(model):
    rng = random.Random(5)
    requests = [
        request(
            f"r{i}",
            prompt(rng.randrange(1, 60), seed=i // 2),
            seed=i,
            max_tokens=rng.randrange(1, 30),
            temperature=rng.choice([0.0, 0.7, 1.0, 1.5]),
            top_k=rng.choice([0, 0, 5]),
            top_p=rng.choice([1.0, 0.9]),
            repetition_penalty=rng.choice([1.0, 1.3]),
            n=rng.choice([1, 1, 3]),
        )
        for i in range(24)
    ]

    def run(order: list[int], **options) -> dict[tuple[str, int], list[int]]:
        target = InProcessTarget(model, **options)
        for i in order:
            target.submit(requests[i])
            target.turn(rng.randrange(3))
        target.run_until_idle()
        assert target.pool.num_free == target.pool.num_blocks
        run.preemptions = sum(end.stats.num_preemptions for end in target.ends.values())
        return target.tokens

    order = list(range(len(requests)))
    alone = run(order, max_batch_rows=1)
    assert run(order) == alone
    rng.shuffle(order)
    assert run(order, max_batch_rows=32, max_batch_tokens=256) == alone
    assert run(order, max_batch_rows=3, max_batch_tokens=7) == alone
    assert run(order, prefix_cache=False) == alone
    assert run(order, num_blocks=26) == alone
    assert run.preemptions > 0


def test_an_end_of_sequence_token_stops_unless_ignored_and_never_before_min_tokens(model):
    (eos,) = model.config.eos_token_ids
    bias = {eos: 100.0}
    target = InProcessTarget(model)
    target.submit(request("stop", prompt(4), logit_bias=bias))
    target.submit(request("ignore", prompt(4), logit_bias=bias, ignore_eos=True, max_tokens=3))
    target.submit(request("later", prompt(4), logit_bias=bias, min_tokens=4, max_tokens=9))
    target.run_until_idle()
    assert target.tokens["stop", 0] == [eos]
    assert target.tokens["ignore", 0] == [eos] * 3
    later = target.tokens["later", 0]
    assert len(later) == 5
    assert later.index(eos) == 4
    last = {
        d.request_id: d for m in target.control.sent if isinstance(m, RoundEvents) for d in m.deltas
    }
    assert last["stop"].finish_reason is FinishReason.STOP
    assert last["stop"].stop_token_id == eos
    assert last["ignore"].finish_reason is FinishReason.LENGTH


def test_the_context_limit_ends_a_sample_with_length(model):
    target = InProcessTarget(model, max_model_len=32)
    target.submit(request("a", prompt(28), max_tokens=100, ignore_eos=True))
    target.run_until_idle()
    assert len(target.tokens["a", 0]) == 4


def test_an_abort_frees_everything_in_the_next_turn_and_is_idempotent(model):
    target = InProcessTarget(model)
    target.submit(request("a", prompt(30), max_tokens=400, ignore_eos=True, n=4))
    target.turn(5)
    assert target.pool.num_free < target.pool.num_blocks
    target.control.inbox += [Abort("a"), Abort("a"), Abort("unknown")]
    target.turn()
    assert target.pool.num_free == target.pool.num_blocks
    assert target.ends["a"].terminal is Terminal.CANCELLED


def test_a_stopped_sample_leaves_the_others_running(model):
    target = InProcessTarget(model)
    target.submit(request("a", prompt(8), max_tokens=20, ignore_eos=True, n=2, temperature=1.0))
    target.turn(4)
    target.control.inbox.append(StopSample("a", 0))
    target.run_until_idle()
    assert len(target.tokens["a", 0]) < 20
    assert len(target.tokens["a", 1]) == 20
    assert target.ends["a"].terminal is Terminal.FINISHED


def test_a_passed_deadline_fails_the_request_with_its_code(model):
    target = InProcessTarget(model)
    soon = time.monotonic() + 0.05
    target.submit(request("a", prompt(8), max_tokens=400, ignore_eos=True, request_deadline_s=soon))
    target.run_until_idle()
    assert target.ends["a"].code == "DEADLINE_EXCEEDED"
    assert target.pool.num_free == target.pool.num_blocks


def test_non_finite_logits_fail_their_request_alone_and_poison_no_block(model):
    target = InProcessTarget(model, num_blocks=24)
    reference = InProcessTarget(model)
    victim = request("victim", prompt(20, seed=1), max_tokens=30, ignore_eos=True)
    others = [
        request(f"o{i}", prompt(11, seed=50 + i), max_tokens=12, ignore_eos=True) for i in range(12)
    ]
    target.submit(victim)
    target.turn(3)
    (sequence,) = target.scheduler.running
    target.spoil(sequence.block_ids[0] * target.pool.block_size)
    for other in others:
        target.submit(other)
        reference.submit(other)
    target.run_until_idle()
    reference.run_until_idle()
    assert target.ends["victim"].terminal is Terminal.FAILED
    assert target.ends["victim"].code == "INTERNAL"
    for other in others:
        key = (other.request_id, 0)
        assert target.tokens[key] == reference.tokens[key]


def test_prompt_logprobs_are_the_same_in_one_chunk_and_in_many(model):
    asked = request("a", prompt(40), max_tokens=2, prompt_logprobs=3, logprobs=2)
    seen = []
    for chunk in (64, 8):
        target = InProcessTarget(model, max_batch_tokens=chunk)
        target.submit(request("warm", prompt(40), max_tokens=1))
        target.run_until_idle()
        target.submit(asked)
        target.run_until_idle()
        seen.append(target.prompt_logprobs["a"])
    assert seen[0] == seen[1]
    assert [p.token_id for p in seen[0]] == asked.prompt_token_ids[1:]
    assert all(len(p.top_ids) == 3 for p in seen[0])


@pytest.mark.parametrize("chunk", [64, 8])
def test_log_probabilities_of_an_answer_are_its_own_beside_those_of_the_prompt(model, chunk):
    seen = []
    for fields in ({}, {"prompt_logprobs": 2}):
        target = InProcessTarget(model, max_batch_tokens=chunk)
        target.submit(request("a", prompt(20), max_tokens=3, logprobs=2, ignore_eos=True, **fields))
        target.run_until_idle()
        rounds = [each for each in target.control.sent if isinstance(each, RoundEvents)]
        seen.append([entry for each in rounds for d in each.deltas for entry in d.logprobs])
    assert seen[0] == seen[1]
    assert len(seen[0]) == 3


def test_draining_refuses_new_requests_finishes_old_ones_and_says_so_once(model):
    target = InProcessTarget(model)
    target.submit(request("old", prompt(8), max_tokens=10, ignore_eos=True))
    target.turn(2)
    target.control.inbox.append(Drain())
    target.submit(request("new", prompt(8)))
    target.run_until_idle()
    target.turn(3)
    assert target.ends["new"].code == "UNAVAILABLE"
    assert target.ends["old"].terminal is Terminal.FINISHED
    assert sum(isinstance(message, Drained) for message in target.control.sent) == 1


def test_a_second_request_with_a_running_id_does_not_disturb_the_first(model):
    target = InProcessTarget(model)
    target.submit(request("a", prompt(8), max_tokens=10, ignore_eos=True))
    target.turn(2)
    target.submit(request("a", prompt(3), max_tokens=2))
    target.run_until_idle()
    assert len(target.tokens["a", 0]) == 10
    assert list(target.ends) == ["a"]


def test_that_a_draft_process_came_or_went_is_told_before_a_rest(model, monkeypatch):
    target = InProcessTarget(model)
    target.turn()
    told: list[int] = []
    monkeypatch.setattr(target.control, "wait", lambda *_: told.append(len(target.control.sent)))
    before = len(target.control.sent)
    target.turn()
    monkeypatch.setattr(target.node.speculation, "num_drafts_attached", 1)
    target.turn()
    assert told == [before, before + 1]


def test_a_rest_ends_with_the_alarm_of_drafts(model, monkeypatch):
    target = InProcessTarget(model)
    alarms: list[int | None] = []
    monkeypatch.setattr(target.control, "wait", lambda _, alarm: alarms.append(alarm))
    target.turn()
    monkeypatch.setattr(target.node.speculation, "alarm", 77)
    target.turn()
    assert alarms == [None, 77]


@pytest.mark.slow
def test_load_is_published_and_counts_what_ran(model):
    target = InProcessTarget(model)
    target.submit(request("a", prompt(8), max_tokens=10, ignore_eos=True))
    target.run_until_idle()
    time.sleep(0.3)
    target.turn()
    load = [message for message in target.control.sent if isinstance(message, Load)][-1]
    assert load.num_generated_tokens == 10
    assert load.num_prompt_tokens == 8
    assert load.num_free_blocks == load.num_blocks


@pytest.mark.slow
def test_ten_thousand_random_cancels_leak_no_block(model):
    rng = random.Random(9)
    target = InProcessTarget(model, num_blocks=64, max_batch_rows=16)
    alive: list[str] = []
    for i in range(10_000):
        name = f"r{i}"
        length, n = rng.randrange(1, 40), rng.choice([1, 1, 1, 2])
        target.submit(request(name, prompt(length, seed=i % 7), seed=i, max_tokens=60, n=n))
        alive.append(name)
        while len(alive) > rng.randrange(12):
            target.control.inbox.append(Abort(alive.pop(rng.randrange(len(alive)))))
        if rng.random() < 0.4:
            target.turn()
    target.control.inbox += [Abort(name) for name in alive]
    target.run_until_idle()
    assert len(target.ends) == 10_000
    assert target.pool.num_free == target.pool.num_blocks
    assert not target.scheduler.running
    assert not target.scheduler.waiting


def test_prompt_logprobs_are_not_repeated_after_a_preemption(model):
    target = InProcessTarget(model, num_blocks=20, max_batch_tokens=16)
    asked = request("asked", prompt(30, seed=3), max_tokens=30, prompt_logprobs=1, ignore_eos=True)
    first = request("first", prompt(20, seed=4), max_tokens=40, ignore_eos=True)
    target.submit(first)
    target.turn(2)
    target.submit(asked)
    target.run_until_idle()
    assert target.ends["asked"].stats.num_preemptions > 0
    positions = target.prompt_logprobs["asked"]
    assert [p.token_id for p in positions] == asked.prompt_token_ids[1:]


def test_a_deadline_also_ends_a_request_that_never_ran(model):
    target = InProcessTarget(model, max_batch_rows=1)
    target.submit(request("long", prompt(8), max_tokens=300, ignore_eos=True))
    target.turn(2)
    soon = time.monotonic() + 0.01
    target.submit(request("late", prompt(8), request_deadline_s=soon))
    target.turn()
    time.sleep(0.02)
    target.turn()
    assert target.ends["late"].code == "DEADLINE_EXCEEDED"
    assert "long" not in target.ends


def test_waiting_time_counts_as_queueing_and_the_rest_as_prefill_and_decoding(model):
    target = InProcessTarget(model, max_batch_rows=1)
    target.submit(request("first", prompt(8), max_tokens=20, ignore_eos=True))
    target.submit(request("second", prompt(8, seed=1), max_tokens=20, ignore_eos=True))
    start_s = time.monotonic()
    target.run_until_idle()
    elapsed_s = time.monotonic() - start_s
    first, second = target.ends["first"].stats, target.ends["second"].stats
    assert first.prefill_s > 0
    assert second.queue_s > first.prefill_s + first.decode_s > 0
    assert second.queue_s + second.prefill_s + second.decode_s <= elapsed_s + 0.1


def test_a_preempted_sequence_keeps_its_place_before_later_arrivals(model):
    target = InProcessTarget(model, num_blocks=20, max_batch_rows=3)
    for i in range(4):
        target.submit(request(f"r{i}", prompt(20, seed=i), max_tokens=24, ignore_eos=True))
    target.run_until_idle()
    assert target.scheduler.num_preemptions > 0
    assert list(target.ends) == ["r0", "r1", "r2", "r3"]


def test_whoever_is_urgent_is_served_before_earlier_requests(model):
    target = InProcessTarget(model, max_batch_rows=1)
    for name, urgency in (("usual", 0), ("late", 3), ("urgent", -2)):
        target.submit(request(name, [1, 2], max_tokens=2, request_priority=urgency))
    target.run_until_idle()
    assert list(target.ends) == ["urgent", "usual", "late"]


def test_admission_leaves_a_spare_block_for_every_running_sequence(model):
    target = InProcessTarget(model, num_blocks=12)
    target.submit(request("a", prompt(24), max_tokens=20, ignore_eos=True))
    target.turn(2)
    target.submit(request("b", prompt(20, seed=1), max_tokens=4, ignore_eos=True))
    target.turn()
    assert [s.request.request_id for s in target.scheduler.running] == ["a"]


def test_a_profile_covers_its_rounds_and_is_reported_once(model, tmp_path):
    target = InProcessTarget(model)
    path = tmp_path / "trace.json"
    target.submit(request("a", prompt(8), max_tokens=30, ignore_eos=True))
    target.turn(2)
    target.control.inbox.append(Profile(3, str(path)))
    target.run_until_idle()
    (report,) = [message for message in target.control.sent if isinstance(message, Profiled)]
    assert report.error == ""
    events = json.loads(path.read_text())["traceEvents"]
    products = "specserve::row_product", "aten::linear"
    assert any(event.get("name") in products for event in events)


def test_a_profile_is_given_up_when_whoever_asked_has_left(model, tmp_path):
    target = InProcessTarget(model)
    path, other = tmp_path / "trace.json", tmp_path / "other.json"
    target.submit(request("a", prompt(8), max_tokens=30, ignore_eos=True))
    target.control.inbox += [Profile(90, str(path)), Profile(0, str(other))]
    target.turn(2)
    target.control.inbox += [Profile(0, str(path)), Profile(1, str(other))]
    target.run_until_idle()
    (report,) = [message for message in target.control.sent if isinstance(message, Profiled)]
    assert report == Profiled(str(other), "")
    assert other.exists()
    assert not path.exists()


def test_a_profiler_that_fails_costs_nobody_a_request(model, tmp_path, monkeypatch):
    def never(*_: object) -> None:
        raise RuntimeError("somebody else profiles")

    fail = never
    really_stop = torch.profiler.profile.stop
    for method in ("start", "stop"):
        with monkeypatch.context() as patch:
            if method == "stop":
                fail = lambda profiler: really_stop(profiler) or never(profiler)  # noqa: E731
            patch.setattr(torch.profiler.profile, method, fail)
            target = InProcessTarget(model)
            target.submit(request("a", prompt(8), max_tokens=6, ignore_eos=True))
            target.control.inbox.append(Profile(2, str(tmp_path / "trace.json")))
            target.run_until_idle()
        (report,) = [each for each in target.control.sent if isinstance(each, Profiled)]
        assert report.error.endswith("somebody else profiles")
        (end,) = [each for each in target.control.sent if isinstance(each, RequestEnd)]
        assert end.terminal is Terminal.FINISHED


def test_a_profile_of_an_idle_target_ends_with_an_error(model, tmp_path, monkeypatch):
    monkeypatch.setattr(profiling, "IDLE_LIMIT_S", 0.0)
    target = InProcessTarget(model)
    target.control.inbox.append(Profile(3, str(tmp_path / "trace.json")))
    target.turn(2)
    (report,) = [message for message in target.control.sent if isinstance(message, Profiled)]
    assert "no round ran" in report.error
    assert not list(tmp_path.iterdir())
