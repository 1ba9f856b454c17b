"""Modes of draft processes: several with one source, told apart, and gone while nobody drafts."""

from types import SimpleNamespace

import pytest

import target_node.speculation.auto
import target_node.speculation.miss_policy
from target_node.planning.mode_speeds import BatchLoad
from target_node.speculation.miss_policy import Miss, MissPolicy
from target_node.speculation.source import SpeculationStatus
from tests.scripted_time import ScriptedTime
from tests.target_node.planning.recorded_modes import Choosing, Recording, auto, decoding_row

MISSES = {"async skip": Miss.SKIP, "async draft_now": Miss.DRAFT_NOW}
ROUND_S = 0.01


class Drafted(Recording):
    """Draft processes, and what is done about misses in each of their rounds."""

    def __init__(self, policy: MissPolicy, num_unready: int = 0) -> None:
        super().__init__(num_unready)
        self.num_drafts_attached = 1
        self.policy = policy
        self.done: list[Miss] = []

    def propose(self, rows):
        self.done.append(self.policy.choose())
        return super().propose(rows)

    def status(self):
        return SpeculationStatus("async", num_draft_processes=1)


class Service:
    """`auto` with plain decoding and two modes of one draft process."""

    def __init__(self, num_unready: int = 0, rows=None, misses=MISSES) -> None:
        self.policy = MissPolicy()
        self.drafted = Drafted(self.policy, num_unready)
        self.rows = rows or [decoding_row()]
        modes = {"off": Recording()} | dict.fromkeys(misses, self.drafted)
        self.source = auto(modes, misses, self.policy)
        self.tokens = dict.fromkeys(modes, 2)  # of a round
        self.clock = ScriptedTime()

    def scripted(self) -> Choosing:
        self.source._chooser = Choosing()
        return self.source._chooser

    def learn(self, **tokens: int) -> None:
        """What a round of each mode makes, for long enough to know."""
        self.tokens = dict(zip(self.tokens, tokens.values(), strict=True))
        load = BatchLoad.of(len(self.rows), "coupled")
        for _ in range(100):
            for mode, num_tokens in self.tokens.items():
                self.source._chooser.observe(load, mode, num_tokens, ROUND_S, age=9)

    def round(self) -> str:
        rows = self.source.propose(self.rows)
        self.clock.now_s += ROUND_S
        count = self.tokens[self.source.mode] // len(rows)
        self.source.observe(rows, [SimpleNamespace(token_ids=[0] * count) for _ in rows])
        return self.source.mode

    def rounds(self, count: int) -> list[str]:
        return [self.round() for _ in range(count)]


@pytest.fixture
def make_service(monkeypatch):
    def make(**options) -> Service:
        service = Service(**options)
        for module in (target_node.speculation.auto, target_node.speculation.miss_policy):
            monkeypatch.setattr(module, "time", service.clock)
        return service

    return make


def test_modes_of_one_source_are_prepared_once_and_told_apart(make_service):
    service = make_service(num_unready=2)
    chooser = service.scripted()
    chooser.mode = "async skip"
    assert service.round() == "off"
    assert chooser.left_out == set(MISSES)  # neither is ready
    assert (service.drafted.asked, service.drafted.done) == (["warm_up"], [])
    for chooser.mode in ("async skip", "async skip", "async draft_now", "async skip"):
        service.round()
    asked = service.drafted.asked
    assert asked == 3 * ["warm_up"] + 3 * ["propose"]
    assert service.drafted.done == [Miss.SKIP, Miss.DRAFT_NOW, Miss.SKIP]
    service.source.learn()
    observed = [("off", None), ("off", None), *((n, 0) for n in (*MISSES, "async skip"))]
    assert chooser.observed == observed
    service.source.poll()
    service.source.forget(service.rows[0].sequence)
    service.source.close()
    assert asked[-3:] == ["poll", "forget", "close"]  # once for all of them
    assert asked.count("poll") == asked.count("forget") == 1


def test_people_are_told_what_ran_and_not_which_of_its_kinds(make_service):
    service = make_service()
    chooser, acknowledged = service.scripted(), []
    for chooser.mode in ("off", *MISSES):
        service.round()
        acknowledged.append(service.source.status())
    assert [each.speculation_regime for each in acknowledged] == ["off", "async", "async"]
    assert [each.num_draft_processes for each in acknowledged] == [1, 1, 1]


def test_while_no_draft_is_attached_what_needs_one_neither_runs_nor_is_judged(make_service):
    service = make_service()
    service.learn(off=2, skip=4, draft_now=3)
    chooser, load = service.source._chooser, BatchLoad.of(1, "coupled")
    assert set(service.rounds(5)) == {"async skip"}
    service.source.learn()
    speed = chooser.speed(load, "async skip")
    service.drafted.num_drafts_attached = 0
    service.round()  # whose blocks are drawn already
    assert set(service.rounds(500)) == {"off"}
    assert chooser.speed(load, "async skip") == pytest.approx(speed)
    service.drafted.num_drafts_attached = 1
    assert service.rounds(60).count("async skip") > 30


@pytest.mark.parametrize("is_mixed", [False, True])
def test_nobody_waits_again_for_a_draft_that_left_a_wait_unanswered(make_service, is_mixed):
    rows = [decoding_row(), decoding_row(is_decoding=not is_mixed)]
    service = make_service(rows=rows)
    service.learn(off=4, skip=6, draft_now=10)
    assert set(service.rounds(5)) == {"async draft_now"}
    service.policy.waited(in_vain=True)
    service.round()  # whose blocks are drawn already
    assert "async draft_now" not in service.rounds(90)
    service.policy.heard()
    assert "async draft_now" in service.rounds(90)


def test_where_waiting_is_all_there_is_it_is_tried_again_after_a_second(make_service):
    """Meanwhile nobody tells the draft anything, so it has nothing to say."""
    service = make_service(misses={"async draft_now": Miss.DRAFT_NOW})
    service.learn(off=2, draft_now=4)
    assert set(service.rounds(5)) == {"async draft_now"}
    service.policy.waited(in_vain=True)
    service.round()  # whose blocks are drawn already
    assert set(service.rounds(90)) == {"off"}
    assert "async draft_now" in service.rounds(90)


def test_a_wait_in_vain_counts_for_the_mode_that_waited(make_service):
    service = make_service()
    chooser = service.scripted()
    chooser.mode = "async draft_now"

    class Waiting(Drafted):
        def propose(self, rows):
            self.policy.waited(in_vain=True)
            service.clock.now_s += 0.05
            return super().propose(rows)

    service.drafted.__class__ = Waiting
    service.rounds(2)
    service.source.learn()
    assert chooser.observed == [("async draft_now", 0), ("async draft_now", 1)]
    assert chooser.seconds[1] == pytest.approx(ROUND_S + 0.05)


def test_what_runs_while_another_prepares_can_be_run(make_service):
    """Sync prepares, async is faster, but nobody drafts for it."""
    service = make_service()
    service.drafted.num_drafts_attached = 0
    service.source.poll()
    slow = Recording(num_unready=5)
    service.source._modes["sync"] = slow
    chooser = service.scripted()
    chooser.mode = "sync"
    service.tokens["sync"] = 2
    service.round()
    assert chooser.left_out == {"sync", *MISSES}


def alone_service(make_service, misses=MISSES) -> Service:
    """`--speculation async`: whatever runs, draft processes draft for it."""
    service = make_service(misses=misses)
    service.source = auto(dict.fromkeys(misses, service.drafted), misses, service.policy)
    del service.tokens["off"]
    return service


def test_async_alone_chooses_among_what_to_do_about_misses(make_service):
    service = alone_service(make_service)
    service.learn(skip=2, draft_now=4)
    assert service.rounds(100).count("async draft_now") > 75
    service.learn(skip=6, draft_now=4)
    assert service.rounds(100).count("async skip") > 75
    assert service.source.status().speculation_regime == "async"


def test_async_alone_goes_on_without_drafts_and_nothing_is_forgotten_meanwhile(make_service):
    service = alone_service(make_service)
    service.learn(skip=2, draft_now=4)
    chooser, load = service.source._chooser, BatchLoad.of(1, "coupled")
    service.source.learn()
    speed = chooser.speed(load, "async skip")
    service.drafted.num_drafts_attached = 0
    service.tokens["async skip"] = 1
    service.round()  # whose blocks are drawn already
    assert set(service.rounds(300)) == {"async skip"}
    assert chooser.speed(load, "async skip") == pytest.approx(speed)
    service.drafted.num_drafts_attached = 1
    assert service.rounds(60).count("async draft_now") > 30


def test_async_alone_waits_for_nobody_who_is_silent(make_service):
    service = alone_service(make_service)
    service.learn(skip=2, draft_now=4)
    assert "async draft_now" in service.rounds(40)
    service.policy.waited(in_vain=True)
    service.round()  # whose blocks are drawn already
    assert set(service.rounds(90)) == {"async skip"}
    service.policy.heard()
    assert service.rounds(60).count("async draft_now") > 30


def test_loads_are_kept_apart(make_service):
    """Waiting pays for one row and not where one of four holds up the others."""
    service = alone_service(make_service)
    one, four = [decoding_row()], [decoding_row() for _ in range(4)]
    chosen: dict[int, list[str]] = {1: [], 4: []}
    for turn in range(3000):
        service.rows = four if turn // 60 % 2 else one
        service.tokens = (
            {"async skip": 2, "async draft_now": 4}
            if service.rows is one
            else {"async skip": 12, "async draft_now": 8}
        )
        chosen[len(service.rows)].append(service.round())
    assert chosen[1][-600:].count("async draft_now") > 500
    assert chosen[4][-600:].count("async skip") > 500


def test_nothing_is_tried_while_prompts_are_read(make_service):
    service = alone_service(make_service)
    service.rounds(200)
    service.rows = [*(decoding_row() for _ in range(3)), decoding_row(is_decoding=False)]
    assert len(set(service.rounds(300))) == 1


def test_where_waiting_is_all_there_is_and_nobody_to_wait_for_it_runs_and_waits_not(make_service):
    """As it is where nothing else may be done about misses, under `--speculation async`."""
    service = alone_service(make_service, {"async draft_now": Miss.DRAFT_NOW})
    service.policy.waited(in_vain=True)
    service.drafted.num_drafts_attached = 0
    assert set(service.rounds(30)) == {"async draft_now"}
    assert set(service.drafted.done) == {Miss.SKIP}


def test_rounds_after_a_draft_has_come_or_gone_are_as_after_a_change(make_service):
    service = alone_service(make_service)
    chooser = service.source._chooser = Choosing()
    chooser.mode = "async skip"
    for service.drafted.num_drafts_attached in (1, 0, 1):
        service.rounds(3)
    service.source.learn()
    # The first round of a change does not know of it, and is not judged.
    assert [age for _, age in chooser.observed] == [0, 1, 2, 0, 1, 0, 1]


def test_who_drafts_is_known_from_before_a_rounds_blocks_were_drawn(make_service):
    """A draft that dies while it drafts says something of what it drafted."""
    service = make_service()
    service.learn(off=2, skip=4, draft_now=3)
    assert set(service.rounds(5)) == {"async skip"}
    service.drafted.num_drafts_attached = 0
    service.source.poll()  # its row lives
    assert [service.round() for _ in range(3)] == ["async skip", "off", "off"]
    service.source.forget(service.rows[0].sequence)
    service.drafted.num_drafts_attached = 1
    service.rows = [decoding_row() for _ in range(2)]  # a load of which nothing is known
    service.learn(off=2, skip=8, draft_now=3)
    service.source.poll()  # nobody has a block: what is known now may be
    assert service.round() == "async skip"
