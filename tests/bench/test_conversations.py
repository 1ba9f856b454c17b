"""Prompts as they are asked, held against what a real service makes of the same conversation."""

import msgspec
import pytest
from tokenizers import Tokenizer

from bench.conversations import Questions, prepare_questions
from bench.prompt_choice import ChosenPrompts
from bench.prompt_files import PromptRecord
from specserve.api.call import ChatMessage, SpecOptions
from specserve.client import Client
from specserve.errors import InvalidField
from specserve.settings.target_source import EMBEDDED_TARGET

RECORDS = (
    PromptRecord(id="two", category="writing", turns=("Write a class.", "Now test it.")),
    PromptRecord(id="one", category="qa", turns=("What is a list?",)),
    PromptRecord(id="three", category="coding", turns=("Import os.", "Go on.", "And on.")),
)
MAX_TOKENS = 24


def prepared(*records: PromptRecord, target=EMBEDDED_TARGET, max_tokens=MAX_TOKENS) -> Questions:
    chosen = ChosenPrompts(name="standard", records=records, num_available=len(records))
    return prepare_questions(chosen, target, max_tokens)


@pytest.mark.slow
def test_turns_are_what_a_real_service_is_asked_and_answers(service):
    questions = prepared(*RECORDS)
    assert [(q.id, q.turn) for q in questions.asked] == [
        ("two", 0), ("two", 1), ("one", 0), ("three", 0), ("three", 1), ("three", 2),
    ]  # fmt: skip
    assert questions.is_chat
    with Client(service) as client:
        for before, question in zip(questions.asked, questions.asked[1:], strict=False):
            options = {
                "temperature": 0.0,
                "max_tokens": MAX_TOKENS,
                "spec": SpecOptions(mode="off"),
            }
            said = client.generate(list(before.prompt), **options)
            ids = client.generate(list(before.token_ids), **options)
            assert said.text == ids.text  # the template was applied as the service does
            assert said.usage.num_prompt_tokens == len(before.token_ids)
            if question.turn:
                answer = ChatMessage("assistant", said.text)
                turns = {record.id: record.turns for record in RECORDS}[question.id]
                last = ChatMessage("user", turns[question.turn])
                assert question.prompt == (*before.prompt, answer, last)


def without_template(tmp_path):
    for path in EMBEDDED_TARGET.iterdir():
        if path.name not in ("chat_template.jinja", "tokenizer_config.json"):
            (tmp_path / path.name).symlink_to(path)
    return tmp_path


def test_a_model_without_a_chat_template_is_given_text(tmp_path):
    questions = prepared(RECORDS[1], target=without_template(tmp_path))
    assert not questions.is_chat
    assert "there is no chat template" in questions.line
    [question] = questions.asked
    assert question.prompt == "What is a list?"
    tokenizer = Tokenizer.from_file(str(EMBEDDED_TARGET / "tokenizer.json"))
    assert tokenizer.decode(list(question.token_ids)) == "What is a list?"


def test_what_does_not_fit_the_model_is_left_out_and_said():
    long = PromptRecord(id="long", category="rag", turns=("word " * 3000, "Shorter."))
    questions = prepared(RECORDS[1], long)
    assert [q.id for q in questions.asked] == ["one"]
    assert questions.num_too_long == 1
    assert "1 left out" in questions.line
    with pytest.raises(InvalidField, match="--prompts: no prompt fits"):
        prepared(long)


def test_questions_travel_as_json():
    questions = prepared(RECORDS[1])
    assert msgspec.json.decode(msgspec.json.encode(questions), type=Questions) == questions
