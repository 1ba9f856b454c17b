"""What is measured of rounds whose misses are chosen for: in the real loop, with scripted time."""

import pytest

from target_node.planning.mode_speeds import BatchLoad
from target_node.speculation.miss_policy import Miss
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
    """Everything that is measured, and of what kind the rounds were."""

    def __init__(self, pair: InProcessPair) -> None:
        self.loads: list[BatchLoad] = []
        self.num_decoding = self.num_mixed = 0  # rounds, of rows that decode, or some of which do
        self.rounds: list[tuple[int, float]] = []
        self.modes: set[str] = set()
        self.waits: list[dict[str, bool]] = []
        self.answers: list[dict[str, bool]] = []
        listen(pair.speculation._chooser, "observe", self._observe)
        listen(pair.speculation, "propose", self._attach)
        listen(pair.policy, "waited", lambda **told: self.waits.append(told))
        listen(pair.policy, "heard", lambda **told: self.answers.append(told))

    def _observe(self, load, mode, num_tokens, seconds, **_):
        self.loads.append(load)
        self.modes.add(mode)
        self.rounds.append((num_tokens, seconds))

    def _attach(self, rows):
        decoding = {row.sequence.is_decoding for row in rows}
        self.num_decoding += decoding == {True}
        self.num_mixed += len(decoding) == 2

    @property
    def seconds(self) -> list[float]:
        return [seconds for _, seconds in self.rounds]


def listen(whom, method: str, hear) -> None:
    """`hear` what a method is called with."""
    called = getattr(whom, method)

    def hearing(*args, **options):
        hear(*args, **options)
        return called(*args, **options)

    setattr(whom, method, hearing)


def heard_of(
    models, drafting, *misses, num_requests=1, at_once=False, idle=0, asked=None, **options
):
    options = {"max_model_len": MAX_LEN, "misses": misses} | options
    fields = {"temperature": 1.0, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    make = lambda: models.drafter("dspark vanilla")  # noqa: E731
    with InProcessPair(models.model(), make, drafting, **options) as pair:
        heard = Told(pair)
        for number in range(num_requests):
            pair.submit(request(f"r{number}", PROMPT, **(fields | (asked or {}))))
            if not at_once:
                pair.run_until_idle()
                pair.turn(idle)
        pair.run_until_idle()
        pair.speculation.learn()
    return heard


def close_to(seconds):
    return pytest.approx(seconds, abs=1e-9)


def test_a_round_counts_from_the_end_of_the_one_before(models):
    heard = heard_of(models, MUTE, Miss.SKIP)
    assert len(heard.rounds) >= 19
    assert heard.seconds[2:] == [close_to(TURN_S)] * len(heard.rounds[2:])


def test_time_without_work_is_nobodys(models):
    heard = heard_of(models, MUTE, Miss.SKIP, num_requests=3, idle=50)
    assert max(heard.seconds) <= TURN_S + 1e-9


@pytest.mark.parametrize("drafting", [MUTE, QUICK])
def test_every_token_of_decode_rounds_counts(models, drafting):
    heard = heard_of(models, drafting, Miss.SKIP)
    made = sum(num_tokens for num_tokens, _ in heard.rounds)
    assert made == NUM_TOKENS - 1  # the first is the prompt's


def test_what_was_waited_for_is_part_of_a_round(models):
    heard = heard_of(models, Drafting(pace=(0, 12)), Miss.DRAFT_NOW)
    assert {"in_vain": False} in heard.waits
    assert max(heard.seconds) > TURN_S + 1e-9
    assert len(heard.answers) >= heard.waits.count({"in_vain": False})


def test_the_load_is_told_as_it_is(models):
    for temperature, verification in ((0.0, "greedy"), (1.0, "coupled")):
        asked = {"temperature": temperature, "seed": 1}
        heard = heard_of(models, QUICK, Miss.SKIP, num_requests=3, at_once=True, asked=asked)
        # The first round may come before a draft process does.
        assert {load.verification for load in heard.loads[1:]} == {verification}
        assert {load.num_rows for load in heard.loads} <= {1, 2}  # three rows count as two


def test_rounds_that_read_prompts_are_not_counted(models):
    heard = heard_of(models, MUTE, Miss.SKIP, num_requests=4, at_once=True, max_batch_tokens=8)
    assert heard.num_mixed
    assert len(heard.rounds) == heard.num_decoding


@pytest.mark.slow
def test_all_that_may_be_done_about_misses_is_done_and_told_apart(models):
    heard = heard_of(models, Drafting(pace=(0, 12)), *Miss, num_requests=24)
    assert heard.modes == {f"async {miss}" for miss in Miss}
