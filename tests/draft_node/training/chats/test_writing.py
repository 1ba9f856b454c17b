"""What a writer of chats remembers, with a service that answers by one token."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from draft_node.training.chats.overlap import Overlap
from draft_node.training.chats.questions import Questions
from draft_node.training.chats.store import ChatStore
from draft_node.training.chats.writing import ChatWriter, QuestionFeeds, WritingConfig
from specserve.api.events import CompletedSample, Completion, PromptInfo, Timings, Usage
from specserve.api.tokenizer import TextTokenizer
from specserve.client import AsyncClient
from specserve.settings.target_source import EMBEDDED_TARGET
from specserve.types import FinishReason

QUESTIONS = [f"What is the square of the number {n}?" for n in range(40)]
SAMPLE = CompletedSample(
    sample_index=0, text="4", token_ids=[20], origins=[], finish_reason=FinishReason.STOP
)
ANSWER = Completion(
    request_id="one",
    samples=[SAMPLE],
    prompt=PromptInfo(request_id="one", num_prompt_tokens=1),
    usage=Usage(num_prompt_tokens=1, num_cached_tokens=0, num_generated_tokens=1),
    timings=Timings(queue_s=0, prefill_s=0, decode_s=0, time_to_first_token_s=0, total_s=0),
)


class Service:
    """Of an `AsyncClient` what a writer asks for."""

    async def generate(self, prompt: object, **options: object) -> Completion:
        await asyncio.sleep(0)  # others ask meanwhile
        return ANSWER


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[TextTokenizer]:
    found = TextTokenizer(EMBEDDED_TARGET)
    yield found
    found.close()


def write(
    folder: Path,
    tokenizer: TextTokenizer,
    num_tokens: int,
    about: Iterator[str] | None = None,
    *,
    at_once: int = 2,
    max_tokens: int = 1,
) -> list[list[int]]:
    """The prompts in the folder after a run, each of one question out of the same list."""
    config = WritingConfig(
        num_tokens,
        at_once,
        max_tokens,
        seed=0,
        sources_every=0 if about is None else 2,
        follow_up_every=0,
    )
    feeds = QuestionFeeds(iter(QUESTIONS), about or iter(()))
    questions = Questions(Overlap([], "--exclude"))
    client = cast(AsyncClient, Service())
    store = ChatStore(folder)
    writer = ChatWriter(client, tokenizer, store, questions, feeds, config, 8192)
    asyncio.run(writer.run(lambda count: None))
    return [list(exchange.prompt_ids) for exchange in ChatStore(folder).exchanges()]


def test_a_run_that_goes_on_asks_no_question_again(tmp_path, tokenizer):
    first = write(tmp_path, tokenizer, 200)
    prompts = write(tmp_path, tokenizer, 400)
    assert prompts[: len(first)] == first
    assert len(prompts) > len(first) > 2
    assert len({*map(tuple, prompts)}) == len(prompts)


def test_a_feed_that_repeats_itself_for_ever_holds_up_nobody(tmp_path, tokenizer):
    about = itertools.cycle(["What does this function do? def f(): pass"])
    assert len(write(tmp_path, tokenizer, 200, about)) > 2


def test_chats_that_are_under_way_are_counted(tmp_path, tokenizer):
    begun = list[int]()

    class Watched(Service):
        async def generate(self, prompt: object, **options: object) -> Completion:
            begun.append(writer.num_begun)
            return ANSWER

    config = WritingConfig(3, 3, 1, seed=0, sources_every=0, follow_up_every=0)
    feeds, questions = QuestionFeeds(iter(QUESTIONS), iter(())), Questions(Overlap([], "--exclude"))
    client, store = cast(AsyncClient, Watched()), ChatStore(tmp_path)
    writer = ChatWriter(client, tokenizer, store, questions, feeds, config, 8192)
    asyncio.run(writer.run(lambda count: None))
    assert begun[0] >= 1
    assert writer.num_begun == store.next_number == 3


def test_who_wants_little_gets_little_however_many_chats_run_at_once(tmp_path, tokenizer):
    few = write(tmp_path, tokenizer, 200, at_once=30, max_tokens=50)
    assert sum(len(prompt) + 1 for prompt in few) >= 200  # an answer is one token, not 50
    assert len(few) < 15
