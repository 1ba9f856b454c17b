# pyright: strict
"""What a gateway is asked through OpenAI's client, alone and under load, and what came of it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from openai import AsyncOpenAI, BadRequestError, OpenAI, OpenAIError
from openai.types.chat import ChatCompletionMessageParam

from specserve.client import ChatMessage, Client

_QUESTION = "What is the capital of France? Answer in one sentence."
_NUM_TOKENS = 48  # of an answer to it
_TOO_LONG = "x" * 300  # for a stop string
_TIMEOUT_S = 120.0
_LEAST_SHARE = 3  # of the requests, one in so many, are answered before anything happens


@dataclass(frozen=True)
class Answer:
    """Of one request, whatever became of it. Seconds of CLOCK_MONOTONIC."""

    number: int
    is_stream: bool
    began_s: float
    ended_s: float
    text: str
    failure: str | None  # None: it was answered


@dataclass
class Load:
    """Requests that are asked side by side: every other one a stream, seeded by their numbers."""

    prompts: Sequence[str]
    num_requests: int
    num_tokens: int
    at_a_third: Callable[[], None] | None = None  # when a third is answered
    happened_s: float | None = None
    answers: list[Answer] = field(default_factory=list[Answer])

    def add(self, answer: Answer) -> None:
        self.answers.append(answer)
        is_due = _LEAST_SHARE * len(self.answers) >= self.num_requests
        if is_due and self.at_a_third is not None and self.happened_s is None:
            self.at_a_third()
            self.happened_s = time.monotonic()

    @property
    def failed(self) -> list[Answer]:
        return [each for each in self.answers if each.failure is not None]

    @property
    def later(self) -> list[Answer]:
        """Those that were asked after what happened."""
        when_s = self.happened_s
        return [each for each in self.answers if when_s is not None and each.began_s > when_s]

    @property
    def num_failed_later(self) -> int:
        return sum(each.failure is not None for each in self.later)


class Transcript:
    """Lines of the file."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def tell_load(self, what: str, load: Load) -> None:
        """Counts of one pass."""
        self.say(f"{what}: {load.num_requests} requests, {len(load.failed)} failed")
        if (when_s := load.happened_s) is None:
            return
        open_then = [each for each in load.answers if each.began_s <= when_s < each.ended_s]
        failed = sum(each.failure is not None for each in open_then)
        self.say(f"  in flight at the kill: {len(open_then)}, of which failed {failed}")
        num_later, failed = len(load.later), load.num_failed_later
        self.say(f"  asked after the kill: {num_later}, of which failed {failed}")
        for each in load.failed:
            kind = "streamed" if each.is_stream else "whole"
            after_s = each.ended_s - when_s
            self.say(f"  request {each.number} ({kind}), {after_s:.2f} s after: {each.failure}")

    def tell_difference(self, before: Load, after: Load) -> None:
        """Whether who was answered both times got the same text."""
        texts = {each.number: each.text for each in before.answers if each.failure is None}
        both = [each for each in after.answers if each.failure is None and each.number in texts]
        equal = sum(each.text == texts[each.number] for each in both)
        self.say(f"answered both times: {len(both)}, with the same text {equal}")


def _messages(text: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


def ask_samples(url: str, worker: str, transcript: Transcript) -> None:
    """One request of each kind, and the same of a worker itself."""
    with Client(worker) as direct:
        asked = [ChatMessage("user", _QUESTION)]
        ours = direct.generate(asked, max_tokens=_NUM_TOKENS, temperature=0).text
    with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        model = client.models.list().data[0].id
        transcript.say(f"model: {model}")
        _ask_whole(client, model, ours, transcript)
        _ask_stream(client, model, transcript)
        _ask_for_json(client, model, transcript)
        try:
            client.chat.completions.create(
                model=model, messages=_messages(_QUESTION), max_tokens=_NUM_TOKENS, stop=[_TOO_LONG]
            )
        except BadRequestError as error:
            transcript.say(f"a worker refuses, and the gateway says so: {error.message}")


def _ask_whole(client: OpenAI, model: str, ours: str, transcript: Transcript) -> None:
    answer = client.chat.completions.create(
        model=model, messages=_messages(_QUESTION), temperature=0, max_tokens=_NUM_TOKENS
    )
    text = answer.choices[0].message.content
    transcript.say(f"chat: {text!r}")
    transcript.say(f"  a worker itself, over specserve.v1, says the same: {text == ours}")
    transcript.say(f"  usage: {answer.usage}")


def _ask_stream(client: OpenAI, model: str, transcript: Transcript) -> None:
    pieces: list[str] = []
    chunks = client.chat.completions.create(
        model=model,
        messages=_messages(_QUESTION),
        temperature=0,
        max_tokens=_NUM_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in chunks:
        pieces += [choice.delta.content or "" for choice in chunk.choices]
        if chunk.usage:
            transcript.say(f"  usage of the stream: {chunk.usage}")
    transcript.say(f"chat, streamed: {''.join(pieces)!r}")


def _ask_for_json(client: OpenAI, model: str, transcript: Transcript) -> None:
    schema: dict[str, object] = {
        "type": "object",
        "properties": {"capital": {"type": "string", "maxLength": 20}},
        "required": ["capital"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=model,
        messages=_messages(_QUESTION),
        temperature=0,
        max_tokens=_NUM_TOKENS,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
    )
    transcript.say(f"JSON of a schema: {answer.choices[0].message.content!r}")


def ask_under_load(url: str, load: Load, concurrency: int) -> None:
    """All requests of `load`, so many at a time."""
    asyncio.run(_ask_all(url, load, concurrency))


async def _ask_all(url: str, load: Load, concurrency: int) -> None:
    numbers = iter(range(load.num_requests))
    # Whoever is refused is not asked again here: what fails is to be seen.
    async with AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=_TIMEOUT_S
    ) as client:
        model = (await client.models.list()).data[0].id

        async def ask_one_after_another() -> None:
            for number in numbers:
                load.add(await _ask(client, model, load, number))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                tasks.create_task(ask_one_after_another())


async def _ask(client: AsyncOpenAI, model: str, load: Load, number: int) -> Answer:
    is_stream, began_s = number % 2 == 1, time.monotonic()
    prompt = load.prompts[number % len(load.prompts)]
    pieces: list[str] = []
    ask = _stream if is_stream else _whole
    failure = None
    try:
        async for piece in ask(client, model, prompt, load.num_tokens, number):
            pieces.append(piece)
    except OpenAIError as error:
        failure = " ".join(f"{type(error).__name__}: {error}".split())
    return Answer(number, is_stream, began_s, time.monotonic(), "".join(pieces), failure)


async def _whole(
    client: AsyncOpenAI, model: str, prompt: str, num_tokens: int, seed: int
) -> AsyncIterator[str]:
    answer = await client.chat.completions.create(
        model=model, messages=_messages(prompt), max_tokens=num_tokens, seed=seed
    )
    yield answer.choices[0].message.content or ""


async def _stream(
    client: AsyncOpenAI, model: str, prompt: str, num_tokens: int, seed: int
) -> AsyncIterator[str]:
    """Raises OpenAIError for a stream that ends before it is told why."""
    is_whole = False
    async for chunk in await client.chat.completions.create(
        model=model, messages=_messages(prompt), max_tokens=num_tokens, seed=seed, stream=True
    ):
        for choice in chunk.choices:
            yield choice.delta.content or ""
            is_whole |= choice.finish_reason is not None
    if not is_whole:
        raise OpenAIError("the stream ended without a finish_reason")
