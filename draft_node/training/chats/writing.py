# pyright: strict
"""Chats with a running service: many at once, kept in the order of their numbers.

What is drawn in a chat depends on the seed and its number; which question of a file or about
sources it begins with, on which chat was ready for it first. Questions are those of a file,
questions about Python's own sources, and, for the rest, what the model itself writes where the chat
template has the user speak. One chat in four goes on for a second turn.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from draft_node.training.chats.questions import Questions
from draft_node.training.chats.store import ChatStore, Exchange
from specserve.api.call import ChatMessage
from specserve.api.tokenizer import TextTokenizer
from specserve.client import AsyncClient
from specserve.errors import SpecserveError
from specserve.types import FinishReason


class UserTurns:
    """Of one tokenizer's chat template. Found by what two renderings have in common."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    async def before(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Ids of the chat up to where the words of a user's next turn begin."""
        one, other = await self._both(messages)
        return one[: _num_equal(one, other)]

    async def first_words(self, prompts: Sequence[Sequence[int]]) -> list[str]:
        """What the user says in prompts of one turn each; with more turns, the rest as well."""
        one, other = await self._both([])
        start, end = _num_equal(one, other), _num_equal(one[::-1], other[::-1])
        return [self._tokenizer.decode(ids[start : len(ids) - end]) for ids in prompts]

    async def _both(self, messages: Sequence[ChatMessage]) -> tuple[list[int], list[int]]:
        one = await self._tokenizer.encode_chat([*messages, ChatMessage("user", "A")])
        other = await self._tokenizer.encode_chat([*messages, ChatMessage("user", "1")])
        return one, other


def _num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


TEMPERATURES = (0.0, 0.7, 1.0)  # chats take turns
PER_PART = 64  # chats
_TRIES = 4  # at a question of the model's own
_SOURCES_TRIED = 2000  # questions about sources, which were all asked some day
_QUESTION_TOKENS = 200  # a longer one is no question
_SEEDS_PER_CHAT = 16
_MOST_SEED = 2**63 - 1


@dataclass(frozen=True)
class WritingConfig:
    """How much is written, and how."""

    num_tokens: int  # in all, prompts included
    num_at_once: int  # chats
    max_tokens: int  # of an answer
    seed: int
    sources_every: int = 4  # one chat in so many is about Python's sources; 0: none
    follow_up_every: int = 4  # one chat in so many has a second turn; 0: none


@dataclass(frozen=True)
class QuestionFeeds:
    """Where questions come from besides the model; a feed that has ended is passed over."""

    given: Iterator[str]
    sources: Iterator[str]


class ChatWriter:
    """Writes chats into a store until it holds as many tokens as asked for."""

    def __init__(
        self,
        client: AsyncClient,
        tokenizer: TextTokenizer,
        store: ChatStore,
        questions: Questions,
        feeds: QuestionFeeds,
        config: WritingConfig,
        vocab_size: int,
    ) -> None:
        self._client, self._tokenizer, self._store = client, tokenizer, store
        self._questions, self._feeds, self._config = questions, feeds, config
        self._turns = UserTurns(tokenizer)
        self._vocab_size = vocab_size
        self._finished: dict[int, list[Exchange]] = {}
        self._next = store.next_number  # the chat that is begun next
        self._num_under_way, self._num_ended, self._written = 0, 0, 0  # chats; tokens of them
        self.num_tokens = sum(exchange.num_tokens for exchange in store.exchanges())

    @property
    def num_begun(self) -> int:
        """Chats that are there or under way."""
        return self._next

    async def run(self, report: Callable[[int], None]) -> None:
        """Write; `report` is told the tokens that there are. Raises SpecserveError.

        Cancelled, it keeps the chats that are finished; those that are not, come to nothing.
        """
        firsts = {e.number: e.prompt_ids for e in reversed(list(self._store.exchanges()))}
        for words in await self._turns.first_words(list(firsts.values())):
            self._questions.take(words)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._config.num_at_once):
                    group.create_task(self._keep_chatting(report))
        except* SpecserveError as errors:
            raise errors.exceptions[0] from None
        finally:
            for number in range(self._store.next_number, max(self._finished, default=0)):
                self._finished.setdefault(number, [])
            self._keep(least=1)

    async def _keep_chatting(self, report: Callable[[int], None]) -> None:
        while self._foreseen_tokens() < self._config.num_tokens:
            number, self._next = self._next, self._next + 1
            self._num_under_way += 1
            exchanges = await self._chat(number)
            self._num_under_way -= 1
            self._finished[number] = exchanges
            self._num_ended += 1
            num_tokens = sum(exchange.num_tokens for exchange in exchanges)
            self._written += num_tokens
            self.num_tokens += num_tokens
            report(self.num_tokens)
            self._keep(least=PER_PART)

    def _foreseen_tokens(self) -> float:
        """Tokens when the chats under way have ended, if they are as long as those before.

        Whoever is asked for little would else write as many chats as run at once. Where they come
        out shorter, the last of them goes on with others.
        """
        mean = self._written / self._num_ended if self._num_ended else self._config.max_tokens
        return self.num_tokens + self._num_under_way * mean

    def _keep(self, least: int) -> None:
        """Store the chats that are finished in a row, if there are at least so many."""
        end = self._store.next_number
        while end in self._finished:
            end += 1
        if end - self._store.next_number < least:
            return
        numbers = range(self._store.next_number, end)
        kept = [exchange for number in numbers for exchange in self._finished.pop(number)]
        self._store.add(end, kept, self._vocab_size)

    async def _chat(self, number: int) -> list[Exchange]:
        """Nothing where the model came up with no question."""
        config = self._config
        question = self._given(number) or await self._own_question(number, [])
        if question is None:
            return []
        messages = [ChatMessage("user", question)]
        exchanges = [await self._answer(number, 0, messages)]
        if config.follow_up_every and number % config.follow_up_every == 1 % config.follow_up_every:
            answer = self._tokenizer.decode(exchanges[0].answer_ids).strip()
            messages.append(ChatMessage("assistant", answer))
            question = await self._own_question(number, messages)
            if question is not None:
                messages.append(ChatMessage("user", question))
                exchanges.append(await self._answer(number, 1, messages))
        return exchanges

    def _given(self, number: int) -> str | None:
        """The next question of a file or about sources, if it is one's turn."""
        every = self._config.sources_every
        feed = self._feeds.given
        if every and number % every == every - 1:
            feed = itertools.islice(self._feeds.sources, _SOURCES_TRIED)
        return next((text for text in feed if self._questions.take(text)), None)

    async def _own_question(self, number: int, messages: list[ChatMessage]) -> str | None:
        """What the model has the user say next, if that is a question nobody asked."""
        prompt = await self._turns.before(messages)
        for trial in range(_TRIES):
            answer = await self._client.generate(
                prompt,
                temperature=1.0,
                max_tokens=_QUESTION_TOKENS,
                seed=self._seed(number, 2 + len(messages) + trial),
            )
            text = answer.text.strip()
            if answer.samples[0].finish_reason is FinishReason.STOP and self._questions.take(text):
                return text
        return None

    async def _answer(self, number: int, turn: int, messages: list[ChatMessage]) -> Exchange:
        prompt_ids = await self._tokenizer.encode_chat(messages)
        temperature = TEMPERATURES[number % len(TEMPERATURES)]
        answer = await self._client.generate(
            prompt_ids,
            temperature=temperature,
            max_tokens=self._config.max_tokens,
            seed=self._seed(number, turn),
        )
        return Exchange(number, temperature, prompt_ids, answer.samples[0].token_ids)

    def _seed(self, number: int, draw: int) -> int:
        return ((self._config.seed << 32) + number * _SEEDS_PER_CHAT + draw) % _MOST_SEED
