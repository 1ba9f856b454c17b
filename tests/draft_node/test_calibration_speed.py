"""How fast a drafter is: what is compared with what, and what the command does with it."""

import os
import sys
from functools import partial

import pytest

from draft_node.calibration.speed import Answer, chosen_prompts, differences, speed_ratio
from draft_node.training.chats.store import ChatStore, Exchange
from specserve.cli import main
from specserve.commands import calibrate
from specserve.errors import Failed, InvalidField, Unsupported
from specserve.processes.launch import resolve_here
from specserve.settings.config import Config, ModelConfig, ResolvedConfig
from tests.draft_node import calibration_job
from tests.draft_node.calibration_job import write_inputs
from tests.draft_node.training.drafters import VOCAB


def answers(*sizes: tuple[int, float]) -> list[Answer]:
    """Of (tokens, seconds)."""
    return [Answer(list(range(num_tokens)), seconds) for num_tokens, seconds in sizes]


def test_the_ratio_is_of_tokens_a_second_over_all_answers():
    plain, drafted = answers((11, 1.0), (31, 3.0)), answers((11, 1.0), (31, 1.0))
    ratio = speed_ratio(plain, drafted)
    assert ratio.value == pytest.approx(4 / 2)
    assert (ratio.low, ratio.high) == pytest.approx((1, 3))
    assert ratio == speed_ratio(plain, drafted)
    same = speed_ratio(plain, plain)
    assert (same.value, same.low, same.high) == pytest.approx((1, 1, 1))


def test_a_first_token_is_no_decoding():
    plain, drafted = answers((1, 0.0), (11, 2.0)), answers((1, 0.0), (11, 1.0))
    ratio = speed_ratio(plain, drafted)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
    with pytest.raises(Unsupported, match="ended every answer at once"):
        speed_ratio(answers((1, 0.0), (0, 0.0)), answers((1, 0.0), (0, 0.0)))


def test_texts_that_speculation_changed_are_told_and_where_none_may_be_it_fails():
    plain = answers((3, 1.0), (4, 1.0), (5, 1.0))
    assert differences(plain, plain, must_be_equal=True) is None
    drafted = [plain[0], Answer([0, 1, 9, 3], 1.0), Answer([7], 1.0)]
    what = r"2 of 3 answers differ between plain decoding and speculation \(the first is number 2\)"
    with pytest.raises(Failed, match=what):
        differences(plain, drafted, must_be_equal=True)
    assert "--deterministic" in (differences(plain, drafted, must_be_equal=False) or "")


@pytest.fixture(scope="module")
def make_job(tmp_path_factory):
    folder = write_inputs(tmp_path_factory.mktemp("speed"))
    return partial(calibration_job.make_job, folder, folder / "drafter")


def service_of(job: calibrate.Job, **model) -> ResolvedConfig:
    return resolve_here(Config(model=ModelConfig(target=str(job.target), **model)))


def test_texts_are_the_first_of_those_that_are_calibrated_on(make_job):
    job = make_job(speed_prompts=3)
    domains = [prompt.domain for prompt in chosen_prompts(job, service_of(job))]
    assert domains == ["code", "prose", "code"]
    assert len(chosen_prompts(make_job(speed_prompts=12), service_of(job))) == 8


def test_chats_are_spread_over_those_that_are_calibrated_on(make_job, tmp_path):
    store = ChatStore(tmp_path / "chats")
    store.folder.mkdir()
    chats = [Exchange(n, 1.0, (9, 10 + n % 100, 11 + n // 100), (12, 13)) for n in range(300)]
    store.add(300, chats, VOCAB)
    config = service_of(make_job())
    everything, some = (
        chosen_prompts(make_job(data=store.folder, speed_prompts=count), config) for count in (8, 4)
    )
    assert some == everything[::2]


def test_answers_that_leave_no_room_for_a_prompt_are_refused(make_job):
    job = make_job(num_tokens=32)
    with pytest.raises(InvalidField, match="--num-tokens: 32 leave no room for a prompt"):
        chosen_prompts(job, service_of(job, max_model_len=33))
    assert chosen_prompts(job, service_of(job, max_model_len=34))


@pytest.fixture
def stages(monkeypatch, tmp_path, capfd):
    """`stages(failing, *flags)`: the exit code and the stages that were started.

    By a module of the test's own in place of the one that measures.
    """
    (tmp_path / "stages.py").write_text(
        "import json, os, sys\n"
        "stage = json.loads(sys.argv[1])['stage']\n"
        "print(stage)\n"
        "sys.exit(3 if stage == os.environ['FAILING'] else 0)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setattr(calibrate, "_MODULE", "stages")

    def run(failing: str, *flags: str, drafter: str = "dspark") -> tuple[int, list[str]]:
        monkeypatch.setenv("FAILING", failing)
        out = [] if drafter == "ngram" else ["--out", str(tmp_path / "out")]
        code = main(["calibrate", "--drafter", drafter, *out, *flags])
        return code, capfd.readouterr().out.split()

    return run


def test_speed_is_measured_last_unless_nobody_wants_it(stages):
    assert stages("") == (0, ["confidences", "speed"])
    assert stages("", "--no-speed") == (0, ["confidences"])
    assert stages("confidences") == (3, ["confidences"])
    assert stages("speed", "--speed-prompts", "4") == (3, ["confidences", "speed"])
    assert stages("", "--num-tokens", "2") == (0, ["confidences", "speed"])


def test_prompt_lookup_is_timed_alone(stages):
    assert stages("", drafter="ngram") == (0, ["speed"])
    assert stages("speed", drafter="ngram") == (3, ["speed"])


def test_answers_of_one_token_are_refused_before_anything_is_measured(stages):
    assert stages("", "--num-tokens", "1", "--no-speed") == (0, ["confidences"])
    assert stages("", "--num-tokens", "1") == (2, [])
