"""In which order arms have their turns, what they are asked, and when a run ends with an error."""

from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from bench.conversations import Question, Questions
from bench.machine import describe_machine
from bench.sweep import run
from bench.sweep.asking import Asked, Turn
from bench.sweep.kept import Kept, Measured
from bench.sweep.plan import Load, Plan
from bench.sweep.run import Options, Run, check_texts, missing, num_steps
from specserve.errors import SpecserveError
from specserve.settings.target_source import EMBEDDED_TARGET
from tests.bench.sweep.made_up import answer, arms, cell

PLAN = Plan(
    batch_sizes=(1, 2), rates=(4.0,), modes=("off", "sync"), policies=("price",),
    topologies=("1+0",), temperatures=(0.0, 1.0), requests=2, repeats=3, warm_up_s=0.0,
)  # fmt: skip
ARMS = arms(PLAN, 1)
QUESTIONS = Questions(
    name="standard",
    asked=tuple(
        Question(id=str(n), category="qa", turn=0, prompt=f"Ask {n}.", token_ids=(1,) * (n + 1))
        for n in range(5)
    ),
    num_conversations=5,
    num_too_long=0,
    is_chat=True,
    max_tokens=20,
)


def test_arms_take_turns_in_an_order_that_rotates():
    orders = [[arm.name for arm in turns] for _, turns in missing(ARMS, PLAN, [])]
    assert orders[:3] == [["off", "sync"], ["sync", "off"], ["off", "sync"]]
    places = [comparison for comparison, _ in missing(ARMS, PLAN, [])]
    assert len(places) == len(set(places)) == 2 * 3 * 3
    assert str(places[-1]) == "4 a second, poisson, T 1, repeat 3"
    assert num_steps(missing(ARMS, PLAN, []), PLAN) == 2 * 3 + 2 * 3 * 3 * 2


def test_what_is_there_is_not_measured_again():
    done = [cell("off", temperature=0.0), cell("sync", temperature=0.0), cell("sync", repeat=1)]
    done.append(cell("off", temperature=0.0, repeat=1))
    left = missing(ARMS, PLAN, done)
    assert len(left) == 17
    assert (left[0][0].repeat, [arm.name for arm in left[0][1]]) == (1, ["sync"])
    everything = [
        msgspec.structs.replace(cell(arm.name, repeat=c.repeat, temperature=c[0]), load=c.load)
        for c, turns in missing(ARMS, PLAN, [])
        for arm in turns
    ]
    assert missing(ARMS, PLAN, everything) == []


def test_a_text_that_differs_names_both_arms_and_the_seed():
    off, sync = cell("off"), cell("sync")
    check_texts(sync, [off, cell("async", repeat=1)], range(4))
    wrong = msgspec.structs.replace(
        sync, answers=[*sync.answers[:2], answer(text="other"), sync.answers[3]]
    )
    with pytest.raises(SpecserveError, match="seed 12: the text of sync is not that of off"):
        check_texts(wrong, [off], range(10, 14))
    check_texts(wrong, [cell("off", repeat=1)], range(4))  # asked something else


class Stage:
    """Services that are not there; notes what they are asked."""

    def __init__(
        self,
        monkeypatch,
        out: Path,
        plan: Plan = PLAN,
        *,
        request_s: float = 0.0,
        texts_may_differ: bool = False,
    ) -> None:
        self.turns: list[tuple[str, Turn]] = []
        self.lives: list[int] = []  # how many turns there had been when services were started
        self.now_s = 0.0
        self.text = "same"
        self._request_s = request_s
        monkeypatch.setattr(run, "running", self._running)
        monkeypatch.setattr(run, "ask", self._ask)
        options = Options(
            target=EMBEDDED_TARGET, ballast=0, arms=tuple(ARMS), plan=plan, questions=QUESTIONS,
            flags=(), is_pinned=False, texts_may_differ=texts_may_differ,
        )  # fmt: skip
        measured = Measured(
            plan=plan, target="tiny", ballast="none", drafter="", device="cpu", flags="",
            prompts="", is_pinned=False,
        )  # fmt: skip
        self.kept = Kept(out, measured)
        self.kept.begin(describe_machine())
        self.run = Run(
            options, self.kept, elapsed_s=lambda: self.now_s, advance=lambda what: None,
            summarise=lambda: None,
        )  # fmt: skip

    @contextmanager
    def _running(self, services, flags, runner):
        self.lives.append(len(self.turns))
        yield {service: service.name for service in services}

    def _ask(self, service: str, turn: Turn) -> Asked:
        self.turns.append((service, turn))
        took_s = self._request_s * len(turn.prompts) * turn.max_tokens / PLAN.max_tokens
        self.now_s += took_s
        answers = [answer(text=self.text) for _ in turn.prompts]
        return Asked(answers=answers, took_s=took_s, counters={}, foreign_share=0.0)

    def measured(self) -> list[tuple[str, Turn]]:
        """Without warm-ups, whose answers are shorter."""
        return [(name, t) for name, t in self.turns if t.max_tokens == PLAN.max_tokens]


def test_all_arms_of_a_comparison_are_asked_the_same_and_each_comparison_something_else(
    monkeypatch, tmp_path
):
    stage = Stage(monkeypatch, tmp_path)
    stage.run.measure(None)
    turns = stage.measured()
    assert len(turns) == len(stage.kept.cells) == 36
    for (first, one), (second, other) in zip(turns[::2], turns[1::2], strict=True):
        assert {first, second} == {"off", "sync"}
        assert one == other
    of_one = [turn for _, turn in turns[::2] if turn.temperature == 0]
    seeds = [seed for turn in of_one for seed in turn.seeds]
    assert len(seeds) == len(set(seeds))
    assert [t.prompts for t in of_one[:3]] == [
        ["Ask 0.", "Ask 1."], ["Ask 2.", "Ask 3."], ["Ask 4.", "Ask 0."],
    ]  # fmt: skip
    assert [len(t.prompts) for t in of_one] == [2, 2, 2, 4, 4, 4, 2, 2, 2]
    opened = [turn for turn in of_one if not turn.load.is_closed]
    assert all(len(turn.arrivals_s) == 2 for turn in opened)
    assert len({turn.arrivals_s[1] for turn in opened}) == 3
    warm = [turn for _, turn in stage.turns if turn.max_tokens != PLAN.max_tokens]
    assert len(warm) == 2 * 3 * 2
    assert not {seed for turn in warm for seed in turn.seeds} & set(seeds)


@pytest.mark.parametrize("num_done", [0, 3])
def test_fresh_services_serve_one_repeat_of_every_load(monkeypatch, tmp_path, num_done):
    plan = msgspec.structs.replace(PLAN, rates=(), temperatures=(1.0,), fresh=True)
    stage = Stage(monkeypatch, tmp_path, plan)
    order = [(c, arm.name) for c, turns in missing(ARMS, plan, []) for arm in turns]
    for comparison, name in order[:num_done]:  # of the first life's four turns
        kept = msgspec.structs.replace(cell(name), answers=[answer()] * 2)
        stage.kept.keep(msgspec.structs.replace(kept, load=comparison.load))
    stage.run.measure(None)
    places = [(c.repeat, c.load.in_flight) for c in stage.kept.cells]
    assert places == [(repeat, size) for repeat in range(3) for size in (1, 1, 2, 2)]
    assert stage.lives == [0, *((8, 16) if not num_done else (2, 10))]
    left = missing(ARMS, plan, stage.kept.cells[:num_done])
    assert num_steps(left, plan) == (3 * 2 if not num_done else 5) + 12 - num_done


def test_without_time_enough_every_arm_is_asked_fewer_requests_and_all_loads_are_measured(
    monkeypatch, tmp_path
):
    plan = msgspec.structs.replace(PLAN, requests=20, rates=(), temperatures=(1.0,), budget_s=300.0)
    stage = Stage(monkeypatch, tmp_path, plan, request_s=10.0)
    stage.run.measure(None)
    counts = [len(turn.prompts) for _, turn in stage.measured()]
    assert counts[::2] == counts[1::2]
    assert len(counts) == 2 * 3 * 2
    assert all(1 <= count < 20 for count in counts)
    assert min(counts[6:]) >= 2  # as many as are in flight
    assert stage.now_s < 400


def test_what_is_gone_on_with_is_warmed_up_for_all_that_is_left(monkeypatch, tmp_path):
    """Of the first comparison one arm is left, of the next ones both; there is a budget, too."""
    plan = msgspec.structs.replace(PLAN, requests=4, rates=(), temperatures=(1.0,), budget_s=1e6)
    stage = Stage(monkeypatch, tmp_path, plan, request_s=1.0)
    stage.kept.keep(msgspec.structs.replace(cell("off"), answers=[answer()] * 3))
    stage.run.measure(None)
    names = [name for name, turn in stage.turns if turn.max_tokens != PLAN.max_tokens]
    assert sorted(names) == ["off", "off", "sync", "sync"]
    first, *others = [(name, len(turn.prompts)) for name, turn in stage.measured()]
    assert first == ("sync", 3)  # as many as the other one was asked
    assert {count for _, count in others} == {4}
    assert len(others) == 10


@pytest.mark.parametrize("texts_may_differ", [False, True])
def test_a_text_that_differs_ends_the_run_and_is_not_kept_unless_it_may(
    texts_may_differ, monkeypatch, tmp_path
):
    stage = Stage(monkeypatch, tmp_path, texts_may_differ=texts_may_differ)
    ask = stage._ask

    def changed(service: str, turn: Turn) -> Asked:
        stage.text = "changed" if service == "sync" else "same"
        return ask(service, turn)

    monkeypatch.setattr(run, "ask", changed)
    if texts_may_differ:
        stage.run.measure(None)
        assert len(stage.kept.cells) == 36
        return
    with pytest.raises(SpecserveError, match="speculation must not change texts"):
        stage.run.measure(None)
    assert [kept.arm for kept in stage.kept.cells] == ["off"]


def test_services_have_room_for_the_longest_requests_in_flight_and_no_more_rows_than_usual():
    def flags(*sizes: int) -> list[str]:
        plan = msgspec.structs.replace(PLAN, batch_sizes=sizes)
        return Options(
            target=EMBEDDED_TARGET, ballast=30_000_000, arms=(), plan=plan, questions=QUESTIONS,
            flags=("--dtype", "float32"), is_pinned=True,
        ).service_flags()  # fmt: skip

    few, many = flags(2), flags(100)
    assert "--max-batch-rows" not in few
    assert many[many.index("--max-batch-rows") + 1] == "100"
    assert few[few.index("--max-model-len") + 1] == "62"  # 1.25 (5 + 20 + 4 + 20)
    assert few[few.index("--ballast") + 1] == "30000000"
    assert "--oversubscribe" not in few


def test_the_load_of_a_comparison_is_its_own():
    assert missing(ARMS, PLAN, [])[3][0].load == Load(in_flight=2)
