"""Which questions are asked."""

import gzip
import itertools
import json

import pytest

from draft_node.training.chats import sources
from draft_node.training.chats.overlap import NUM_WORDS, Overlap
from draft_node.training.chats.questions import LONGEST, Questions, read_questions
from specserve.errors import InvalidField

WORDS = [f"word{i}" for i in range(30)]


def test_a_question_is_asked_once_however_it_is_spelt():
    questions = Questions(Overlap([], "--exclude"))
    assert questions.take("What is the capital of France?")
    assert not questions.take("what is the capital, of FRANCE ?")
    assert questions.take("What is the capital of Spain?")
    assert not questions.take("Hi")
    assert not questions.take("?????????????")
    assert not questions.take("a" * (LONGEST + 1))


@pytest.mark.parametrize("kind", ["text", "wrapped", "json", "indented", "gzip"])
def test_questions_that_share_words_in_a_row_with_excluded_text_are_not(tmp_path, kind):
    path, text = tmp_path / "bench", " ".join(WORDS)
    value = {"id": 1, "turns": ["other", {"content": text.replace("word9 ", "word9\n")}]}
    line = json.dumps(value, indent=1 if kind == "indented" else None)
    line = {"text": text, "wrapped": text.replace(" word9", "\nword9")}.get(kind, line)
    path.write_bytes(gzip.compress(line.encode()) if kind == "gzip" else line.encode())
    questions = Questions(Overlap([path], "--exclude"))
    assert not questions.take("Well, " + ", ".join(WORDS[5 : 5 + NUM_WORDS]).upper() + "?")
    assert questions.take("Well, " + " ".join(WORDS[5 : 4 + NUM_WORDS]) + "?")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidField, match="--exclude: cannot read"):
        Overlap([tmp_path / "none"], "--exclude")
    with pytest.raises(InvalidField, match="--prompts: cannot read"):
        list(read_questions(tmp_path / "none"))


def test_questions_are_read_from_every_kind_of_line(tmp_path):
    path = tmp_path / "questions"
    lines = ["What is a monad?", "", '{"prompt": "one"}', '{"question": " two ", "answer": "x"}']
    lines += ['{"turns": ["three", "more"]}']
    system, user = (
        {"role": role, "content": text} for role, text in (("system", "be"), ("user", "four"))
    )
    lines += [json.dumps({"messages": [system, user]})]
    said = [{"from": "gpt", "value": "Hello!"}, {"from": "human", "value": "five"}]
    lines += [json.dumps({"conversations": said})]
    path.write_text("\n".join(lines))
    found = list(read_questions(path))
    assert found == ["What is a monad?", "one", "two", "three", "four", "five"]
    path.write_text('what\n{"id": 1}\n')
    with pytest.raises(InvalidField, match="line 2 has no text in any of: prompt, question"):
        list(read_questions(path))
    path.write_text("{")
    with pytest.raises(InvalidField, match="line 1 is no JSON"):
        list(read_questions(path))


def test_questions_over_sources_depend_on_the_seed_alone():
    one, other, third = ([*itertools.islice(sources.questions(seed), 30)] for seed in (1, 1, 2))
    assert one == other != third
    assert len(set(one)) == 30
    assert any("```python\ndef " in question for question in one)


def test_without_sources_there_are_no_questions_over_them(monkeypatch):
    monkeypatch.setattr(sources, "_files", list)
    assert list(sources.questions(0)) == []
