"""What the miss policy is told of rounds: in the real loop, under a scripted clock."""

import pytest

from target_node.miss_policy import Miss
from tests.exactness.speculative import MAX_LEN, Models, make_models
from tests.target_node.in_process import request
from tests.target_node.in_process_pair import TURN_S, InProcessPair
from tests.target_node.scripted_drafts import Drafting

QUICK, MUTE = Drafting(pace=(12,)), Drafting(pace=(0,))
PROMPT = [5, 9, 3, 7, 5, 9, 3]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


class Told:
    """Everything that a policy hears, which goes on hearing it."""

    def __init__(self, policy) -> None:
        self.rounds: list[float] = []
        self.followed: list[tuple[Miss | None, bool]] = []
        self.spent: list[tuple[Miss, float, bool]] = []
        verified, followed, spent = policy.verified, policy.followed, policy.spent

        def hear_verified(num_rows, num_tokens, seconds, **besides):
            self.rounds.append(seconds)
            verified(num_rows, num_tokens, seconds, **besides)

        def hear_followed(before, *, is_hit):
            self.followed.append((before, is_hit))
            followed(before, is_hit=is_hit)

        def hear_spent(miss, num_missed, seconds, *, is_first=False):
            self.spent.append((miss, seconds, is_first))
            spent(miss, num_missed, seconds, is_first=is_first)

        policy.verified, policy.followed = hear_verified, hear_followed
        policy.spent = hear_spent


def told(models, drafting, *, num_requests=1, idle=0, **options):
    options = {"max_model_len": MAX_LEN} | options
    make = lambda: models.drafter("dspark vanilla")  # noqa: E731
    with InProcessPair(models.model(), make, drafting, **options) as pair:
        heard = Told(pair.policy)
        for number in range(num_requests):
            asked = {"temperature": 1.0, "max_tokens": 20, "ignore_eos": True}
            pair.submit(request(f"r{number}", PROMPT, **asked))
            pair.run_until_idle()
            pair.turn(idle)
    return heard


def close_to(seconds):
    return pytest.approx(seconds, abs=1e-9)


def test_a_round_counts_from_the_end_of_the_one_before(models):
    heard = told(models, MUTE, miss=Miss.SKIP)
    assert len(heard.rounds) >= 19
    assert heard.rounds[2:] == [close_to(TURN_S)] * len(heard.rounds[2:])


def test_time_without_work_is_nobodys(models):
    heard = told(models, MUTE, miss=Miss.SKIP, num_requests=3, idle=50)
    assert max(heard.rounds) <= TURN_S + 1e-9


def test_what_was_waited_for_is_no_part_of_a_round(models):
    heard = told(models, Drafting(pace=(0, 12)), miss=Miss.DRAFT_NOW)
    waited = [seconds for miss, seconds, _ in heard.spent if miss is Miss.DRAFT_NOW]
    assert sum(seconds > 0 for seconds in waited) >= 2
    assert max(heard.rounds) <= TURN_S + 1e-9
    assert heard.rounds.count(close_to(TURN_S)) >= len(heard.rounds) - 2


def test_what_follows_a_miss_and_a_hit_is_told_apart(models):
    mute = told(models, MUTE, miss=Miss.SKIP)
    assert set(mute.followed) == {(Miss.SKIP, False)}
    quick = told(models, QUICK, miss=Miss.SKIP)
    assert quick.followed.count((None, True)) >= 1
    # A row's rounds are one chain: what a round found is what the next one follows.
    for (_, is_hit), (before, _) in zip(quick.followed, quick.followed[1:], strict=False):
        assert (before is None) == is_hit


def test_rounds_of_other_regimes_are_none_of_these(models):
    rounds, followed = [], 0
    for seed in range(4):
        heard = told(models, Drafting(pace=(12,), seed=seed), auto=True, num_requests=3)
        rounds += heard.rounds
        followed += len(heard.followed)
    assert len(rounds) > 20
    assert followed < len(rounds)
    assert max(rounds) <= TURN_S + 1e-9


def test_a_first_draft_beside_the_target_is_told_from_others(models):
    heard = told(models, MUTE, miss=Miss.DRAFT_HERE)
    firsts = [is_first for _, _, is_first in heard.spent]
    assert firsts[0] is True
    assert not any(firsts[1:])
