"""Files of prompts as others publish them, and what is none."""

import gzip
import json
from collections import Counter

import pytest

from bench.prompt_files import STANDARD_PROMPTS, PromptFile, read_prompt_file
from specserve.errors import InvalidField

QUESTION = {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."]}
CODE = {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "test": "..."}
SUM = {"question": "How many?", "answer": "#### 3"}


def write(path, *lines, compress=False):
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if compress else text.encode())
    return path


def read(path, *lines, compress=False) -> PromptFile:
    return read_prompt_file(write(path, *lines, compress=compress))


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(
    ("line", "name", "category", "turns"),
    [
        (QUESTION, "mt-bench", "writing", ("Write.", "Rewrite.")),
        (QUESTION | {"category": "rag", "turns": ["Ask."]}, "spec-bench", "rag", ("Ask.",)),
        (CODE, "human-eval", "coding", ("def f():\n",)),
        (SUM, "gsm8k", "math_reasoning", ("How many?",)),
    ],
)
def test_a_format_is_told_by_its_fields_and_not_by_its_name(
    tmp_path, line, name, category, turns, compress
):
    file = read(tmp_path / "any.name", line, "", compress=compress)
    assert file.name == name
    [record] = file.records
    assert (record.category, record.turns) == (category, turns)


def test_our_own_set_has_spec_benchs_categories_and_two_turns_where_mt_bench_has_two():
    file = read_prompt_file(STANDARD_PROMPTS)
    assert file.name == "standard"
    two = ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]
    one = ["translation", "summarization", "qa", "math_reasoning", "rag"]
    assert file.categories == [*two, *one]
    assert set(Counter(record.category for record in file.records).values()) <= {2, 3, 4}
    for record in file.records:
        assert len(record.turns) == (2 if record.category in two else 1)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([SUM, "{"], "line 2 is no JSON"),
        (["[1]"], "line 1 is no JSON object"),
        ([{"text": "Hello"}], "line 1 is of no known format (its fields: text)"),
        ([SUM, CODE], "line 2 is of human-eval, but the lines before are of gsm8k"),
        ([QUESTION | {"turns": []}], "line 1 has turns that are no list"),
        ([QUESTION | {"turns": ["a", 3]}], "line 1 has a turn that is no text"),
        ([QUESTION | {"category": None}], "line 1 has a category that is no text"),
        ([CODE | {"task_id": True}], "line 1 has a task_id"),
        ([CODE | {"prompt": " "}], "line 1 has a prompt"),
        ([], "holds no prompt"),
        ([QUESTION, QUESTION], "2 prompts with the id 81"),
    ],
)
def test_what_is_no_file_of_prompts_is_refused_in_one_line(tmp_path, lines, problem):
    path = tmp_path / "prompts.jsonl"
    with pytest.raises(InvalidField) as error:
        read(path, *lines)
    message = str(error.value)
    assert problem in message
    assert str(path) in message
    assert message.startswith("--prompts")
    assert "\n" not in message
    assert "known are Spec-Bench" in message or "the id" in message


@pytest.mark.parametrize("content", [b"\xff\xfe\n", b"\x1f\x8bno gzip", b"\x1f\x8b"])
def test_bytes_that_are_no_text_are_refused(tmp_path, content):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidField, match=r"prompts\.jsonl"):
        read_prompt_file(path)


def test_a_file_that_is_not_there_or_a_folder_is_named(tmp_path):
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(InvalidField, match="cannot read"):
            read_prompt_file(path)
