"""What the miss policy is told of rounds: in the real loop, under a scripted clock."""

import pytest

from target_node.miss_policy import Miss
from target_node.regime_speeds import Load
from tests.exactness.speculative import MAX_LEN, Models, make_models
from tests.target_node.in_process import request
from tests.target_node.in_process_pair import TURN_S, InProcessPair
from tests.target_node.scripted_drafts import Drafting

QUICK, MUTE = Drafting(pace=(12,)), Drafting(pace=(0,))
PROMPT = [5, 9, 3, 7, 5, 9, 3]
NUM_TOKENS = 20


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


class Told:
    """Everything that a policy hears, which goes on hearing it."""

    def __init__(self, policy) -> None:
        self.begun: list[tuple[Load, bool, bool, bool]] = []
        self.rounds: list[tuple[int, float]] = []
        self.waits: list[bool] = []
        self.num_heard = 0
        choose, observe, waited, heard = policy.choose, policy.observe, policy.waited, policy.heard

        def hear_choose(load, *, can_wait, is_mixed, follows):
            self.begun.append((load, can_wait, is_mixed, follows))
            return choose(load, can_wait=can_wait, is_mixed=is_mixed, follows=follows)

        def hear_observe(num_tokens, seconds):
            self.rounds.append((num_tokens, seconds))
            observe(num_tokens, seconds)

        def hear_waited(*, in_vain):
            self.waits.append(in_vain)
            waited(in_vain=in_vain)

        def hear_heard():
            self.num_heard += 1
            heard()

        policy.choose, policy.observe = hear_choose, hear_observe
        policy.waited, policy.heard = hear_waited, hear_heard

    @property
    def seconds(self) -> list[float]:
        return [seconds for _, seconds in self.rounds]


def told(models, drafting, *, num_requests=1, at_once=False, idle=0, asked=None, **options):
    options = {"max_model_len": MAX_LEN} | options
    fields = {"temperature": 1.0, "max_tokens": NUM_TOKENS, "ignore_eos": True} | (asked or {})
    make = lambda: models.drafter("dspark vanilla")  # noqa: E731
    with InProcessPair(models.model(), make, drafting, **options) as pair:
        heard = Told(pair.policy)
        for number in range(num_requests):
            pair.submit(request(f"r{number}", PROMPT, **fields))
            if not at_once:
                pair.run_until_idle()
                pair.turn(idle)
        pair.run_until_idle()
    return heard


def close_to(seconds):
    return pytest.approx(seconds, abs=1e-9)


def test_a_round_counts_from_the_end_of_the_one_before(models):
    heard = told(models, MUTE, miss=Miss.SKIP)
    assert len(heard.rounds) >= 19
    assert heard.seconds[2:] == [close_to(TURN_S)] * len(heard.rounds[2:])


def test_time_without_work_is_nobodys(models):
    heard = told(models, MUTE, miss=Miss.SKIP, num_requests=3, idle=50)
    assert max(heard.seconds) <= TURN_S + 1e-9


@pytest.mark.parametrize("drafting", [MUTE, QUICK])
def test_every_token_of_decode_rounds_counts(models, drafting):
    heard = told(models, drafting, miss=Miss.SKIP)
    made = sum(num_tokens for num_tokens, _ in heard.rounds)
    assert made == NUM_TOKENS - 1  # the first is the prompt's


def test_what_was_waited_for_is_part_of_a_round(models):
    heard = told(models, Drafting(pace=(0, 12)), miss=Miss.DRAFT_NOW)
    assert False in heard.waits
    assert max(heard.seconds) > TURN_S + 1e-9
    assert heard.num_heard >= heard.waits.count(False)


def test_the_load_is_told_as_it_is(models):
    for temperature, judging in ((0.0, "greedy"), (1.0, "coupled")):
        asked = {"temperature": temperature, "seed": 1}
        heard = told(models, QUICK, miss=Miss.SKIP, num_requests=3, at_once=True, asked=asked)
        assert {load.law for load, *_ in heard.begun} == {judging}
        assert {load.num_rows for load, *_ in heard.begun} <= {1, 2}  # three rows count as two
        assert {can_wait for _, can_wait, *_ in heard.begun[4:]} == {True}


def test_rounds_that_read_prompts_are_not_counted(models):
    heard = told(models, MUTE, miss=Miss.SKIP, num_requests=4, at_once=True, max_batch_tokens=8)
    mixed = [is_mixed for _, _, is_mixed, _ in heard.begun]
    assert any(mixed)
    assert len(heard.rounds) == mixed.count(False)


@pytest.mark.slow
def test_the_first_round_after_another_regimes_does_not_follow(models):
    first = others = 0
    for seed in range(4):
        heard = told(models, Drafting(pace=(12,), seed=seed), auto=True, num_requests=3)
        first += sum(not follows for *_, follows in heard.begun)
        others += sum(follows for *_, follows in heard.begun)
        assert max(heard.seconds) <= TURN_S + 1e-9 or heard.waits
    assert first > 4
    assert others > 0
