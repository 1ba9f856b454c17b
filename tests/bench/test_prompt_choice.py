"""Which prompts are asked: flags, and the even choice over categories."""

import argparse
import json
from collections import Counter

import pytest

from bench.prompt_choice import add_prompt_options, read_prompts, stratified
from bench.prompt_files import PromptRecord
from specserve.errors import InvalidField


def records(**counts: int) -> list[PromptRecord]:
    return [
        PromptRecord(id=f"{category}{number}", category=category, turns=("Ask.",))
        for category, count in counts.items()
        for number in range(count)
    ]


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_prompt_options(parser, "128")
    return parser.parse_args(words)


def test_the_choice_is_even_and_a_larger_one_begins_with_the_smaller():
    given = records(a=80, b=10, c=10, d=10)
    chosen = stratified(given, 22)
    counts = Counter(record.category for record in chosen)
    assert set(counts.values()) <= {5, 6}
    assert sum(counts.values()) == len(set(chosen)) == 22
    assert stratified(given, 9) == chosen[:9]
    assert {record.category for record in chosen[:4]} == set("abcd")
    assert chosen != given[:22]


def test_a_category_that_runs_out_leaves_its_place_to_the_others():
    counts = Counter(record.category for record in stratified(records(a=1, b=9), 6))
    assert counts == {"a": 1, "b": 5}
    assert len(stratified(records(a=1, b=9), 10)) == 10


def test_our_own_set_is_the_default_and_as_much_of_it_as_there_is():
    chosen = read_prompts(parsed(), 13)
    assert (chosen.name, len(chosen.records)) == ("standard", 13)
    assert len({record.category for record in chosen.records}) == 13
    assert len(read_prompts(parsed(), 10_000).records) == chosen.num_available
    assert len(read_prompts(parsed(), None).records) == chosen.num_available


def test_categories_and_numbers_are_as_asked_for(tmp_path):
    path = tmp_path / "q.jsonl"
    lines = [
        {"question_id": number, "category": "qa" if number % 2 else "rag", "turns": ["Ask."]}
        for number in range(10)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    chosen = read_prompts(parsed("--prompts", str(path), "--categories", "qa"), None)
    assert (chosen.name, len(chosen.records)) == ("spec-bench", 5)
    assert {record.category for record in chosen.records} == {"qa"}
    assert len(read_prompts(parsed("--prompts", str(path), "--num-prompts", "3"), 8).records) == 3


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--prompts", "8"], r"--prompts: .*--num-prompts 8"),
        (["--prompts", "none.jsonl"], "cannot read none.jsonl"),
        (["--num-prompts", "0"], "--num-prompts: 0 is not between 1 and the 39"),
        (["--num-prompts", "40"], "--num-prompts: 40 is not between 1 and the 39"),
        (["--categories", "poetry"], "--categories: 'poetry' is none of writing"),
    ],
)
def test_what_cannot_be_asked_is_refused(words, problem):
    with pytest.raises(InvalidField, match=problem):
        read_prompts(parsed(*words), 8)


def test_a_file_whose_name_is_a_number_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "8").write_text('{"question": "How many?", "answer": "3"}\n')
    assert read_prompts(parsed("--prompts", "8"), None).name == "gsm8k"
