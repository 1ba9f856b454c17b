"""What does not pay is tried now and then, and what a trial shows outweighs all before it."""

from itertools import groupby

from tests.target_node.planning.test_drafts_pay import ROUND_S
from tests.target_node.planning.test_drafts_pay import Rounds as TimedRounds
from tests.target_node.planning.test_row_chooser import GAMMA, Rounds

PAUSE = 256  # rounds, the first time


def test_a_few_drafts_of_a_trial_outweigh_all_before_it():
    """Others had the machine for long; and most rounds of the trial are not timed."""
    rounds = Rounds(1, token_s=0.0)
    for _ in range(40):
        rounds.pace.observe(1, GAMMA, 5.0)
    drafted = [rounds.play([GAMMA]) for _ in range(100)]
    assert not drafted[-1]
    paused = [rounds.play([GAMMA]) for _ in range(PAUSE + 1 - drafted.count([]))]
    assert [bool(each) for each in paused] == [False] * (len(paused) - 1) + [True]
    for _ in range(4):  # of which the first does not count
        rounds.pace.observe(1, GAMMA, 0.05)
    assert all(rounds.play([GAMMA]) for _ in range(100))


def test_a_few_tokens_of_a_trial_outweigh_all_before_it(monkeypatch):
    """Drafts took next to no time for long, so that they went on though none stood."""
    rounds = TimedRounds(monkeypatch)
    rounds.draft_s = ROUND_S / 100
    assert all(rounds.play(0) for _ in range(600))
    rounds.draft_s = ROUND_S
    drafted = [rounds.play(0) for _ in range(100)]
    assert not drafted[-1]
    drafted = [rounds.play(3) for _ in range(PAUSE + 100)]
    assert all(drafted[PAUSE:])


def test_what_is_known_is_not_doubted_where_another_load_begins():
    """Its first rounds have drafts anyway, and other loads knew better."""
    rounds = Rounds(2)
    for _ in range(200):
        rounds.play([GAMMA, GAMMA])
    rounds.round.rows = rounds.round.rows[:1]
    for _ in range(8):
        rounds.play([0])
    assert rounds.round.admission._acceptance.survivals("rejection")[0] > 0.9


def test_once_drafts_have_paid_again_pauses_are_as_short_as_at_first(monkeypatch):
    """What they take changes, as where somebody else has the machine now and then."""
    rounds = TimedRounds(monkeypatch)

    def pauses(num_rounds: int, draft_s: float) -> list[int]:
        rounds.draft_s = draft_s
        drafted = [rounds.play(3) for _ in range(num_rounds)]
        return [len(list(run)) for has_drafts, run in groupby(drafted) if not has_drafts]

    assert pauses(900, 50 * ROUND_S)[:2] == [PAUSE, 2 * PAUSE]
    assert len(pauses(1200, ROUND_S / 2)) == 1
    assert pauses(600, 50 * ROUND_S)[0] == PAUSE
