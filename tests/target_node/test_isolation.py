"""What the review found missing: isolation of bad requests and bad KV, shared prefixes, stops."""

import math

import pytest

from specserve.types import Abort, FinishReason, RoundEvents, Terminal
from tests.target_node.in_process import InProcessTarget, fixture_model, request

PROMPT = list(range(4, 44))


@pytest.fixture(scope="module")
def model():
    return fixture_model()


@pytest.mark.parametrize(
    "bad",
    [
        {"prompt": [1, 128]},
        {"prompt": [1, -1]},
        {"prompt": [2**63 + 5] * 9},
        {"seed": -1},
        {"logprobs": -1},
        {"prompt_logprobs": -3},
        {"logit_bias": {128: 1.0}},
        {"stop_token_ids": (128,), "min_tokens": 2},
        {"top_k": 2**63 + 5},
        {"temperature": math.nan},
        {"min_p": 2.0},
    ],
    ids=str,
)
def test_a_request_out_of_range_is_rejected_and_a_neighbour_never_notices(model, bad):
    target = InProcessTarget(model)
    target.submit(request("ok", PROMPT, max_tokens=5, ignore_eos=True))
    target.submit(request("bad", bad.pop("prompt", PROMPT), max_tokens=4, **bad))
    target.run_until_idle()
    assert target.ends["bad"].terminal is Terminal.REJECTED
    assert target.ends["bad"].code == "INVALID_ARGUMENT"
    assert target.ends["ok"].terminal is Terminal.FINISHED


def test_parameters_that_overflow_logits_do_not_withdraw_a_shared_prefix(model):
    target = InProcessTarget(model)
    target.submit(request("warm", PROMPT, max_tokens=1))
    target.run_until_idle()
    cached = target.pool.num_cached
    target.submit(request("tiny", PROMPT, max_tokens=2, repetition_penalty=1e-38))
    target.run_until_idle()
    assert target.pool.num_cached >= cached


def test_kv_that_is_not_finite_never_outlives_a_request_cancelled_during_prefill(model):
    target = InProcessTarget(model, num_blocks=16, block_size=8, max_batch_tokens=12)
    target.submit(request("sick", PROMPT, max_tokens=4))
    target.turn()
    (sequence,) = target.scheduler.running
    target.spoil(sequence.block_ids[1] * 8 + 3)  # of the half full, unsealed block
    target.control.inbox.append(Abort("sick"))
    for i in range(6):
        target.submit(request(f"ok{i}", [50 + i, 2, 3], max_tokens=4, ignore_eos=True))
    target.run_until_idle()
    assert {end.terminal for name, end in target.ends.items() if name != "sick"} == {
        Terminal.FINISHED
    }


def test_samples_of_one_prompt_run_together_when_only_their_own_blocks_are_missing(model):
    target = InProcessTarget(model, num_blocks=32, block_size=4, max_batch_rows=8)
    prompt = [5 + i % 90 for i in range(80)]  # 20 of 32 blocks, shared by all
    target.submit(request("a", prompt, max_tokens=4, n=4, temperature=1.0, ignore_eos=True))
    most = 0
    for _ in range(40):
        target.turn()
        most = max(most, len(target.scheduler.running))
    assert most == 4


def test_samples_of_one_request_differ_and_the_sampler_forgets_them(model):
    target = InProcessTarget(model)
    target.submit(request("a", PROMPT, n=3, max_tokens=12, temperature=1.5, ignore_eos=True))
    target.run_until_idle()
    assert len({tuple(target.tokens["a", i]) for i in range(3)}) == 3
    assert not target.node.sampler._states


def test_a_stop_token_id_stops_even_when_the_end_of_sequence_is_ignored(model):
    target = InProcessTarget(model)
    bias = {77: 100.0}
    target.submit(
        request("a", PROMPT, stop_token_ids=(77,), logit_bias=bias, ignore_eos=True, max_tokens=9)
    )
    target.submit(
        request("b", PROMPT, stop_token_ids=(77,), logit_bias=bias, min_tokens=3, max_tokens=9)
    )
    target.run_until_idle()
    assert target.tokens["a", 0] == [77]
    assert 77 not in target.tokens["b", 0][:3]
    deltas = [d for m in target.control.sent if isinstance(m, RoundEvents) for d in m.deltas]
    assert all(d.stop_token_id == 77 for d in deltas if d.finish_reason is FinishReason.STOP)


@pytest.mark.parametrize("second_salt", ["a", "b", ""])
def test_the_prefix_cache_serves_only_requests_of_the_same_salt(model, second_salt):
    target = InProcessTarget(model)
    for name, salt in (("first", "a"), ("second", second_salt)):
        target.submit(request(name, PROMPT, max_tokens=1, request_cache_salt=salt))
        target.run_until_idle()
    assert (target.ends["second"].stats.num_cached_tokens > 0) is (second_salt == "a")


def test_a_numerical_failure_leaves_neither_nan_nor_its_prefix_behind(model):
    target = InProcessTarget(model)
    target.submit(request("sick", PROMPT, max_tokens=30, ignore_eos=True))
    target.turn(2)
    (sequence,) = target.scheduler.running
    target.spoil(sequence.block_ids[0] * 4)
    target.run_until_idle()
    assert target.ends["sick"].code == "INTERNAL"
    target.submit(request("same", PROMPT, max_tokens=3, ignore_eos=True, prompt_logprobs=0))
    target.submit(request("same2", PROMPT, max_tokens=3, ignore_eos=True))
    target.run_until_idle()
    clean = InProcessTarget(model, prefix_cache=False)
    clean.submit(request("same2", PROMPT, max_tokens=3, ignore_eos=True))
    clean.run_until_idle()
    assert target.tokens["same2", 0] == clean.tokens["same2", 0]
