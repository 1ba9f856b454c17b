"""What the target reports of speculation adds up, in the real loop; and nothing depends on it."""

from itertools import pairwise

import pytest

from specserve.types import Load
from target_node.planning import load
from target_node.speculation.miss_policy import Miss
from tests.exactness.speculative import Models, make_models, requests
from tests.target_node.in_process_pair import InProcessPair
from tests.target_node.scripted_drafts import Drafting
from tests.target_node.speculation.asynchronous_pairs import QUICK, answer, pair_of

SLOW = Drafting(pace=(3, 0, 9))  # some blocks come in time, some do not


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


def last_load(pair: InProcessPair) -> Load:
    return [message for message in pair.control.sent if isinstance(message, Load)][-1]


def test_every_look_up_is_a_hit_or_a_miss_with_a_fall_back(models):
    with pair_of(models, drafting=SLOW) as pair:
        for _ in range(4):
            answer(pair, max_tokens=30)
        found, sent = last_load(pair), pair.links.reports
    assert 0 < found.num_hits < found.num_lookups
    assert found.num_misses == {"skip": found.num_lookups - found.num_hits}
    assert 0 < found.num_hits_after_hit <= found.num_lookups_after_hit
    # Every look-up but a sample's last is what another one is after.
    assert found.num_hits - 4 <= found.num_lookups_after_hit <= found.num_hits
    assert found.num_prepared_blocks >= found.num_hits
    assert found.drafts == sent
    assert found.drafts[0].is_attached
    assert found.bytes_received == sent[0].bytes_received > 0
    assert found.bytes_sent == sent[0].bytes_sent > 0


@pytest.mark.parametrize("miss", [Miss.DRAFT_NOW, Miss.LOCAL_DRAFT, Miss.NGRAM])
def test_misses_are_counted_by_what_is_done_about_them(models, miss):
    with pair_of(models, drafting=QUICK, miss=miss) as pair:
        answer(pair, max_tokens=30)
        found = last_load(pair)
    assert set(found.num_misses) == {str(miss)}
    waits = found.num_misses[miss] if miss is Miss.DRAFT_NOW else 0
    assert (0 < found.num_waits <= waits) if waits else found.num_waits == 0
    assert (found.wait_s > 0) == (found.num_waits > 0)


def test_rounds_are_counted_by_mode(models):
    with pair_of(models, auto=True, miss=None) as pair:
        for each in requests(8, seed=3):
            pair.submit(each)
        pair.run_until_idle()
        found = last_load(pair)
    assert set(found.num_rounds_by_mode) == {"off", "sync", "async"}
    assert sum(found.num_rounds_by_mode.values()) == found.num_rounds


def test_the_verify_budget_is_that_of_rounds_without_prompts(models):
    with pair_of(models) as pair:
        answer(pair, max_tokens=40)
        found, records = last_load(pair), list(pair.node.rounds.records)
    budget = found.verify_budget
    assert sum(budget.counts) == found.num_decode_rounds > 0
    assert budget.total == sum(row.verify_len for record in records for row in record.rows) > 0
    assert budget.counts[0] == found.num_decode_rounds - sum(bool(r.rows) for r in records)


def test_calibration_is_of_the_tokens_that_were_reached(models):
    with pair_of(models) as pair:
        for each in requests(6, seed=2):
            pair.submit(each)
        pair.run_until_idle()
        found = last_load(pair)
        rows = [row for record in pair.node.rounds.records for row in record.rows]
    assert all(row.confidences for row in rows)
    assert found.num_accepted_tokens > 0
    by_position = found.calibration
    assert by_position[0].num_judged == sum(row.num_judged > 0 for row in rows) > 0
    for before, after in pairwise(by_position):
        assert after.num_judged <= before.num_accepted
    counted = [each.num_accepted for each in by_position]
    assert counted == found.num_accepted_per_position[: len(counted)]
    assert all(0 <= each.confidence <= each.num_judged for each in by_position)
    assert all(0 <= each.error <= 1 for each in by_position)


def test_what_a_round_takes_is_held_against_what_was_predicted(models):
    with pair_of(models) as pair:
        answer(pair, max_tokens=40)
        found = last_load(pair)
    assert sum(found.step_time_ratio.counts) == pair.runner.steps.num_predicted > 10
    assert found.step_time_ratio.total > 0
    assert found.step_time_error == pair.runner.steps.median_error


def test_nothing_depends_on_whether_and_when_somebody_is_told(models, monkeypatch):
    """Rounds, drafts, blocks verified and tokens are the same with a report a turn and with few."""
    told = []
    for period_s in (0.0, 1e6):
        monkeypatch.setattr(load, "LOAD_PERIOD_S", period_s)
        with pair_of(models, drafting=SLOW, miss=None) as pair:
            for each in requests(8, seed=5):
                pair.submit(each)
            pair.run_until_idle()
            rows = [record.rows for record in pair.node.rounds.records]
            num_reports = sum(isinstance(message, Load) for message in pair.control.sent)
            told.append((num_reports, rows, pair.tokens))
    (often, *busy), (seldom, *quiet) = told
    assert often >= 10 * seldom
    assert busy == quiet
