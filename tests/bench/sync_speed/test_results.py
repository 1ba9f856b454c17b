"""Interleaving of arms, and what their traces are summed up to."""

import msgspec
import pytest

from bench.domains import GreedyCheck
from bench.drafter_choice import DrafterChoice
from bench.processes import Usage
from bench.rounds import Answer, Run, Turn
from bench.sync_speed.measure import Interleaved, Prompts, Setting, arms_of
from bench.sync_speed.plan import FULL, Plan
from bench.sync_speed.records import Arm, SpeculateJob, SpeculateTrace
from bench.sync_speed.results import quiet, rows_of, summarise
from specserve.sampling.verification.method import VerificationMethod

PLAIN = Arm()
CHOICE = DrafterChoice(label="dspark", drafter="dspark")
COUPLED, REJECTION = (
    Arm(drafter=CHOICE, method=method)
    for method in (VerificationMethod.COUPLED, VerificationMethod.REJECTION)
)
AT_1 = Setting(ballast="30M", batch_size=1, domain="code", temperature=1.0)
AT_0 = Setting(ballast="30M", batch_size=1, domain="code", temperature=0.0)


def turn(turn_s: float, num_emitted: int = 1, *, is_decode: bool = True, draft_s: float = 0.0):
    return Turn(
        is_decode=is_decode, num_rows=1, num_emitted=num_emitted, turn_s=turn_s, draft_s=draft_s,
        forward_s=turn_s / 2,
    )  # fmt: skip


def trace(turns: list[Turn], token_ids: list[int], waited_s: float = 0.0) -> SpeculateTrace:
    prefill = turn(1.0, is_decode=False)
    run = Run(answers=[Answer(token_ids=token_ids)], turns=[prefill, *turns])
    return SpeculateTrace(run=run, usage=Usage(ran_s=2.0, waited_s=waited_s))


def group(waited_s: float = 0.0) -> dict[Arm, SpeculateTrace]:
    """Plainly 6 tokens a second; speculating 3 tokens in a round that costs 1.5 plain ones."""
    text = list(range(7))
    return {
        COUPLED: trace([turn(0.25, 3, draft_s=0.05)] * 2, text),
        PLAIN: trace([turn(1 / 6)] * 6, text, waited_s),
        REJECTION: trace([turn(0.5, 2)] * 3, [9, *text[1:]]),
    }


def test_rates_are_those_of_decoding_rounds_and_ratios_pair_the_groups():
    rows = {(row.drafter, row.method): row for row in rows_of(AT_1, [group()] * 3)}
    plain, coupled = rows["plain", "any"], rows["dspark", "coupled"]
    assert plain.tokens_per_s.value == pytest.approx(6.0)
    assert plain.ratio is None
    assert coupled.tokens_per_s.value == pytest.approx(12.0)
    assert coupled.ratio is not None
    assert (coupled.ratio.low, coupled.ratio.value, coupled.ratio.high) == pytest.approx((2, 2, 2))
    assert coupled.call_ratio is not None
    assert coupled.call_ratio.value == pytest.approx(2.0 / 1.5)  # both read the prompt for a second
    assert coupled.accept_len.value == pytest.approx(3.0)
    assert coupled.round_cost == pytest.approx(1.5)
    assert coupled.predicted == pytest.approx(2.0)


def test_calls_too_short_to_be_counted_say_nothing_of_processor_time():
    groups = [group()] * 3
    assert rows_of(AT_1, groups)[1].cpu_ratio is not None
    for one in groups:
        one[PLAIN] = msgspec.structs.replace(one[PLAIN], usage=Usage(ran_s=0.0))
    assert all(row.cpu_ratio is None for row in rows_of(AT_1, groups))


def test_the_parts_of_a_round_add_up():
    coupled = rows_of(AT_1, [group()])[1].round
    assert coupled.draft_ms == pytest.approx(50.0)
    assert coupled.verify_ms == pytest.approx(125.0)
    assert coupled.draft_ms + coupled.verify_ms + coupled.rest_ms == pytest.approx(250.0)


def test_at_equal_accept_length_only_the_cost_of_a_round_counts():
    rows = {row.method: row for row in rows_of(AT_1, [group()])}
    assert rows["coupled"].common_accept_len == pytest.approx(2.5)
    assert rows["coupled"].ratio_at_common_len == pytest.approx(2.5 / 1.5)
    assert rows["rejection"].ratio_at_common_len == pytest.approx(2.5 / 3.0)


def test_texts_are_compared_only_where_equality_is_promised():
    rows = {row.method: row for row in rows_of(AT_1, [group()])}
    assert rows["coupled"].equal_texts == 1.0
    assert rows["rejection"].equal_texts is None
    differing = {arm: one for arm, one in group().items() if arm is not COUPLED}
    assert rows_of(AT_0, [differing])[1].equal_texts == 0.0


def test_disturbed_groups_are_left_out_where_enough_are_quiet():
    groups = [group(0.0)] * 11 + [group(0.9)]
    assert len(quiet(groups)) == 11
    assert rows_of(AT_1, groups)[0].num_disturbed == 1
    assert len(quiet([group(0.9)] * 3)) == 3


def test_the_summary_names_drafter_domain_sampling_and_target():
    keys = summarise(rows_of(AT_1, [group()]))
    assert keys["dspark_code_t1_coupled_30M"] == pytest.approx(2.0)
    assert {"dspark_code_t1_rejection_30M_lo", "dspark_code_t1_rejection_30M_hi"} <= keys.keys()


def test_nothing_measured_gives_no_rows():
    assert rows_of(AT_0, []) == []


class Child:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.jobs: list[SpeculateJob] = []

    def ask(self, job: SpeculateJob) -> SpeculateTrace:
        self.jobs.append(job)
        return group()[job.arm]


def interleaved(plan: Plan, prompts: Prompts) -> tuple[Interleaved, Child]:
    child = Child()
    arms = [PLAIN, COUPLED, REJECTION]
    return Interleaved(child, arms, prompts, plan, lambda what: None), child


def prompts(num_sound: int) -> Prompts:
    check = GreedyCheck(domain="code", num_candidates=12, qualifying=list(range(num_sound)))
    return Prompts({"code": [[i, i] for i in range(12)]}, {"code": check})


def test_every_group_goes_to_all_arms_in_rotated_order():
    run, child = interleaved(FULL, prompts(0))
    assert len(run.run(AT_1)) == 12
    jobs = child.jobs[3:]  # after the warm-up
    assert [job.arm for job in jobs[:6]] == [
        PLAIN, COUPLED, REJECTION, COUPLED, REJECTION, PLAIN,
    ]  # fmt: skip
    for first in range(0, len(jobs), 3):
        assert len({(str(job.prompts), str(job.seeds)) for job in jobs[first : first + 3]}) == 1
    assert len({job.seeds[0] for job in jobs}) == 12


def test_greedy_decoding_uses_sound_prompts_and_one_method():
    run, child = interleaved(FULL, prompts(10))
    assert len(run.run(AT_0)) == 10
    assert {job.arm for job in child.jobs} == {PLAIN, COUPLED}
    run, child = interleaved(FULL, prompts(9))
    assert run.run(AT_0) == []
    assert child.jobs == []


def test_at_temperature_0_the_first_method_of_every_drafter_is_left():
    other = Arm(
        drafter=DrafterChoice(label="lm", drafter="lm"), method=VerificationMethod.REJECTION
    )
    assert arms_of([PLAIN, REJECTION, COUPLED, other], 0.0) == [PLAIN, REJECTION, other]
    assert arms_of([PLAIN, REJECTION, COUPLED], 0.7) == [PLAIN, REJECTION, COUPLED]
