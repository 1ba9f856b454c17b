"""Rows without a block: who waits, and who drafts instead, in the real loop."""

import itertools
from dataclasses import replace

import pytest

from specserve.sampling.verification.method import VerificationMethod
from specserve.types import Load
from target_node.speculation.drafting import MAX_FAILURES
from target_node.speculation.miss_policy import Miss
from tests.exactness.speculative import Models, make_models
from tests.target_node.in_process import request
from tests.target_node.in_process_pair import TIMEOUT_S
from tests.target_node.scripted_drafts import Drafting
from tests.target_node.speculation.asynchronous_pairs import PROMPT, answer, pair_of, reports_of


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


def test_waiting_for_a_block_is_bounded(models):
    slept: list[float] = []
    with pair_of(models, drafting=Drafting(pace=(1,)), miss=Miss.DRAFT_NOW) as pair:
        pair.turn(4)
        pair.policy.max_wait_s = TIMEOUT_S / 2
        waits: list[bool] = []
        pair.policy.waited = lambda *, in_vain: waits.append(in_vain)
        step = pair.clock.on_sleep

        def dead() -> None:
            slept.append(pair.clock.now_s)

        pair.clock.on_sleep = dead
        pair.submit(request("r0", PROMPT, max_tokens=4, ignore_eos=True))
        pair.turn(2)
        assert 0 < slept[-1] - slept[0] <= pair.policy.max_wait_s
        assert waits[-1]  # in vain
        pair.clock.on_sleep = step
        pair.run_until_idle()
        assert pair.asynchronous.status().num_hits == 0
        assert pair.ends["r0"].stats.num_drafted_tokens > 0


def test_who_has_gone_is_not_waited_for(models):
    with pair_of(models, drafting=Drafting(pace=(1,)), miss=Miss.DRAFT_NOW) as pair:
        pair.turn(4)
        pair.policy.max_wait_s = 60.0
        step, slept = pair.clock.on_sleep, []
        pair.clock.on_sleep = lambda: slept.append(pair.clock.now_s)  # drafts are silent
        pair.submit(request("r0", PROMPT, max_tokens=4, ignore_eos=True))
        pair.turn(2)
        assert pair.links.num_attached == 0
        assert TIMEOUT_S / 2 < slept[-1] - slept[0] < 2 * TIMEOUT_S
        pair.clock.on_sleep = step
        pair.run_until_idle()


def test_nobody_waits_for_a_draft_that_is_still_being_told_of_a_long_prompt(models, monkeypatch):
    monkeypatch.setattr("target_node.speculation.reporting.MAX_INLINE", 6)
    monkeypatch.setattr(
        "target_node.speculation.reporting.CHUNK", 4
    )  # a round tells so many tokens
    prompt = [1 + (7 * i) % 60 for i in range(60)]
    with pair_of(models, drafting=Drafting(pace=(12,)), miss=Miss.DRAFT_NOW) as pair:
        pair.policy.max_wait_s = 60.0
        slept, step = [], pair.clock.on_sleep
        pair.clock.on_sleep = lambda: slept.append(pair.clock.now_s) or step()
        answer(pair, prompt=prompt)
        assert pair.asynchronous.status().wait_s < 1.0
        assert slept  # it was waited for once it knew


def test_nobody_waits_beside_a_row_that_has_its_block(models):
    had_blocks: dict[bool, list[int]] = {True: [], False: []}  # by whether the rows waited
    with pair_of(models, drafting=Drafting(pace=(0, 12)), miss=Miss.DRAFT_NOW) as pair:
        after_miss, draft_now = pair.asynchronous._after_miss, pair.asynchronous._draft_now
        waited, chosen, choose = [], [], pair.policy.choose

        def seen(rows, missed, num_hits):
            waited.clear()
            found = after_miss(rows, missed, num_hits)
            if chosen[-1] is Miss.DRAFT_NOW:  # a draft may be silent, or gone
                had_blocks[bool(waited)].append(num_hits)
            return found

        pair.asynchronous._after_miss = seen
        pair.policy.choose = lambda: chosen.append(choose()) or chosen[-1]
        pair.asynchronous._draft_now = lambda missed: waited.append(1) or draft_now(missed)
        for number in range(4):
            fields = {"seed": number, "temperature": 1.0, "ignore_eos": True}
            pair.submit(request(f"r{number}", PROMPT, **fields))
        pair.run_until_idle()
    assert len(had_blocks[True]) > 5
    assert set(had_blocks[True]) == {0}
    assert len(had_blocks[False]) > 5
    assert min(had_blocks[False]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("method", list(VerificationMethod))
def test_a_miss_is_drafted_for_beside_the_target_and_what_follows_is_foreseen(models, method):
    options = {"miss": Miss.LOCAL_DRAFT, "default_method": method}
    with pair_of(models, "the target itself", **options) as pair:
        (draft,) = pair.drafts
        turns, pass_turn = itertools.count(), draft.pass_turn
        # It sleeps through one turn, whose outcome is a miss.
        draft.pass_turn = lambda: pass_turn() if next(turns) != 3 else None
        rows = reports_of(pair)
        tokens = answer(pair, max_tokens=40)
        drafted_here = [row for row in rows if row.draft_top_k is not None]
        assert drafted_here
        for row in drafted_here:
            assert row.speculation_id == 0
            verify_len = len(row.block)
            slots = row.draft_top_k.slot_ids
            assert verify_len <= len(slots) <= verify_len + 1
            text = PROMPT + tokens
            for number, follower in enumerate(text[row.position + 1 :][: len(slots)]):
                # The target's own distribution knows what it will say, unless it was cut for the
                # ratio test.
                assert follower in slots[number] or method is not VerificationMethod.COUPLED
                if number < verify_len and follower != row.block[number]:
                    break
        # After a miss, what the target said of its block is enough.
        assert pair.hit_rate > (0.6 if method is VerificationMethod.COUPLED else 0.1)


def test_a_drafter_here_that_breaks_costs_its_drafts_alone(models, caplog):
    with pair_of(models, miss=Miss.LOCAL_DRAFT, drafting=Drafting(num_drafts=0)) as pair:
        expected = answer(pair, seed=5)
        pair._here.speculate = None  # calling it raises
        assert answer(pair, seed=5) == expected
    assert caplog.text.count("drafting failed") == MAX_FAILURES


def test_the_alarm_is_that_of_the_links(models):
    for auto in (False, True):
        with pair_of(models, auto=auto) as pair:
            assert pair.speculation.alarm == pair.links.alarm


def test_no_draft_means_plain_decoding_without_waiting(models):
    with pair_of(models, drafting=Drafting(pace=(0,)), miss=Miss.DRAFT_NOW) as pair:
        pair.clock.on_sleep = lambda: pytest.fail("waited for nobody")
        answer(pair)
        assert pair.links.num_attached == 0
        assert pair.asynchronous.status().num_hits == 0


def test_a_block_without_a_distribution_is_a_miss_for_the_ratio_test(models):
    with pair_of(models, default_method=VerificationMethod.REJECTION) as pair:
        receive = pair.links.receive
        pair.links.receive = lambda: [
            (
                epoch,
                replace(push, kept_ids=push.kept_ids[..., :0], kept_probs=push.kept_probs[..., :0]),
            )
            for epoch, push in receive()
        ]
        assert len(answer(pair)) == 20
        assert pair.asynchronous.status().num_hits == 0


def test_only_what_stands_in_for_a_drafter_that_is_the_target_is_rejected(models):
    """A block after a miss is drafted from the same context as any other."""
    irregular = Drafting(pace=(0, 12, 3, 0, 12))
    with pair_of(models, "the target itself", drafting=irregular, miss=Miss.NGRAM) as pair:
        for place in range(6):
            answer(pair, prompt=[*PROMPT, place], temperature=0.0, max_tokens=40)
        pair.turn(40)  # until the load is told again
        load = next(m for m in reversed(pair.control.sent) if isinstance(m, Load))
    stood_in, accepted = load.num_stand_in_draft_tokens, load.num_stand_in_accepted_tokens
    assert 0 < accepted < stood_in
    assert load.num_drafted_tokens - stood_in > 30
    assert load.num_drafted_tokens - stood_in == load.num_accepted_tokens - accepted
