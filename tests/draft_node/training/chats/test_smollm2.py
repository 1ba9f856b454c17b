"""The chats of SmolLM2 that are kept in the tree: whole, its own, and of no prompt of a bench."""

import asyncio
from pathlib import Path

import pytest

import draft_node.training.chats
from draft_node.training.chats.overlap import Overlap
from draft_node.training.chats.store import ChatStore
from draft_node.training.chats.writing import UserTurns
from draft_node.training.text_source import chats
from specserve.api.tokenizer import TextTokenizer
from specserve.models.config import read_spec
from specserve.settings.target_source import find_smollm2
from tests.architecture.sources import ROOT

FOLDER = Path(draft_node.training.chats.__file__).parent / "smollm2"


@pytest.fixture(scope="module")
def model() -> Path:
    found = find_smollm2()
    assert found is not None, "make setup installs it"
    return found


def test_they_are_read_and_end_as_the_model_ends_them(model):
    spec = read_spec(model)
    source = chats(FOLDER, spec.vocab_size)
    assert len(source.training["chat"]) > 1_400_000
    exchanges = list(ChatStore(FOLDER).exchanges())
    ended = [e.answer_ids[-1] in spec.eos_token_ids for e in exchanges]
    assert all(
        is_end or len(e.answer_ids) == 384 for is_end, e in zip(ended, exchanges, strict=True)
    )
    assert 0.4 < sum(ended) / len(ended) < 1
    assert {round(e.temperature, 1) for e in exchanges} == {0.0, 0.7, 1.0}


def test_no_question_is_a_benchs(model):
    exchanges, tokenizer = list(ChatStore(FOLDER).exchanges()), TextTokenizer(model)
    words = asyncio.run(UserTurns(tokenizer).first_words([e.prompt_ids for e in exchanges]))
    tokenizer.close()
    overlap = Overlap([ROOT / "bench/prompts/standard.jsonl"], "--exclude")
    assert [text for text in words if text in overlap] == []
