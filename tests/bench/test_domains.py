"""The prompts of the drafter benches, and which of them greedy decoding is measured on."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.domains import ARITHMETIC, DOMAINS, GreedyCheck, check_greedy, draw_prompts
from bench.in_process import Job
from bench.known_texts import KnownTexts
from bench.rounds import Answer, Run
from bench.workload import read_texts
from specserve.errors import InvalidField
from specserve.settings.target_source import EMBEDDED_TARGET


@dataclass
class Parrot:
    """An engine that says what it is told to, prompt by prompt."""

    texts: list[list[int]]
    jobs: list[Job] = field(default_factory=list)

    def run(self, job: Job) -> Run:
        self.jobs.append(job)
        texts = [self.texts.pop(0) for _ in job.prompts]
        return Run(answers=[Answer(token_ids=text) for text in texts], turns=[])


def test_only_prompts_whose_greedy_text_does_not_repeat_itself_qualify():
    fresh, loop = list(range(64)), [1, 2] * 32
    nearly = [*range(50), *range(14)]  # 11 of 61 4-grams a second time
    engine = Parrot([loop, fresh, nearly, loop, fresh])
    prompts = [[5], [6], [7], [8], [9]]
    check = check_greedy("code", prompts, engine, batch_size=2, known=KnownTexts())
    assert check.qualifying == [1, 2, 4]
    assert check.share == pytest.approx(0.6)
    assert [len(job.prompts) for job in engine.jobs] == [2, 2, 1]
    assert {(job.temperature, job.num_tokens) for job in engine.jobs} == {(0.0, 64)}


def test_what_was_looked_at_is_remembered_by_the_next_run(tmp_path):
    fresh, loop, path = list(range(64)), [1, 2] * 32, tmp_path / "cache" / "known.json"
    check_greedy("code", [[5], [6]], Parrot([loop, fresh]), 2, KnownTexts(path))
    engine = Parrot([fresh])
    check = check_greedy("code", [[7], [6], [5]], engine, 2, KnownTexts(path))
    assert check.qualifying == [0, 1]
    assert [list(job.prompts) for job in engine.jobs] == [[[7]]]
    assert sorted(file.name for file in path.parent.iterdir()) == ["known.json", "known.lock"]


def test_two_runs_at_once_keep_what_both_found(tmp_path):
    path = tmp_path / "known.json"
    first, second = KnownTexts(path), KnownTexts(path)
    first.add([[5]], [True])
    second.add([[6]], [False])
    assert second.get([5]) is True
    after = KnownTexts(path)
    assert (after.get([5]), after.get([6])) == (True, False)


def test_a_user_without_a_home_keeps_nothing(tmp_path, monkeypatch):
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    known = KnownTexts.of(tmp_path, (64, 0.8))
    known.add([[5]], [True])
    assert known.get([5]) is True


def test_another_definition_or_model_has_another_record(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    KnownTexts.of(tmp_path / "model", (64, 0.8)).add([[5]], [True])
    assert KnownTexts.of(tmp_path / "model", (64, 0.8)).get([5]) is True
    assert KnownTexts.of(tmp_path / "model", (64, 0.9)).get([5]) is None
    (tmp_path / "model/config.json").write_text("{ }")
    assert KnownTexts.of(tmp_path / "model", (64, 0.8)).get([5]) is None


def test_a_model_that_is_one_file_has_a_record_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    KnownTexts.of(model, (64, 0.8)).add([[5]], [True])
    assert KnownTexts.of(model, (64, 0.8)).get([5]) is True
    model.write_bytes(b"GGUF, another")
    assert KnownTexts.of(model, (64, 0.8)).get([5]) is None


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"a": 3}', b"\xff"])
def test_a_spoiled_record_is_ignored_and_replaced(content, tmp_path, caplog):
    path = tmp_path / "known.json"
    path.write_bytes(content)
    known = KnownTexts(path)
    assert known.get([5]) is None
    assert "is not used" in caplog.text
    known.add([[5]], [False])
    assert KnownTexts(path).get([5]) is False


def test_a_folder_that_cannot_be_written_costs_the_record_and_nothing_else(tmp_path, caplog):
    (tmp_path / "cache").write_text("a file")
    known = KnownTexts(tmp_path / "cache" / "known.json")
    known.add([[5]], [True])
    assert known.get([5]) is True
    assert "is not written" in caplog.text


@pytest.mark.parametrize(("count", "measurable"), [(9, False), (10, True)])
def test_too_few_sound_prompts_are_no_measurement(count, measurable):
    check = GreedyCheck(domain="code", num_candidates=50, qualifying=list(range(count)))
    assert check.is_measurable(10) is measurable


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_larger_draw_begins_with_the_smaller_one(domain):
    few, many = (draw_prompts(domain, EMBEDDED_TARGET, count) for count in (3, 5))
    assert many[:3] == few
    assert len({tuple(prompt) for prompt in many}) == 5


def test_held_out_texts_come_from_the_end_where_calibration_does_not_look():
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(EMBEDDED_TARGET / "tokenizer.json"))
    [prompt] = draw_prompts("prose", EMBEDDED_TARGET, 1)
    assert tokenizer.decode(prompt) == read_texts("prose")[-1]


def test_arithmetic_prompts_are_lines_of_correct_sums():
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(EMBEDDED_TARGET / "tokenizer.json"))
    [prompt] = draw_prompts(ARITHMETIC, EMBEDDED_TARGET, 1)
    lines = tokenizer.decode(prompt).splitlines()
    assert len(lines) == 10
    for line in lines:
        a, plus, b, equals, c = line.split()
        assert (plus, equals, int(a) + int(b)) == ("+", "=", int(c))


def test_more_prompts_than_there_are_is_an_error():
    with pytest.raises(InvalidField, match="code has only"):
        draw_prompts("code", EMBEDDED_TARGET, 10_000)
