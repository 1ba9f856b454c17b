"""From chosen prompts to what is asked: every turn of a conversation, as text and as token ids.

A second turn is asked with the answer to the first one in the conversation. That answer is the
target's own, greedy and written once, so that every arm of a bench continues the same tokens. A
model without a chat template is given plain text.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch

from bench.in_process import Engine, EngineSize, Job
from bench.prompt_choice import ChosenPrompts
from bench.prompt_files import PromptRecord
from specserve.api.call import ChatMessage
from specserve.api.tokenizer import TextTokenizer
from specserve.backends.choose import choose_backend
from specserve.errors import InvalidField
from specserve.models.config import read_spec
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from specserve.models.transformer import Transformer

_BATCH = 8  # first answers that are written side by side
_USER, _ASSISTANT = "user", "assistant"

Said = str | tuple[ChatMessage, ...]  # as `AsyncClient.generate` takes it


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `turn` counts from 0; `token_ids` are what the service makes of `prompt`."""

    id: str
    category: str
    turn: int
    prompt: Said
    token_ids: tuple[int, ...]


class Questions(msgspec.Struct, frozen=True, kw_only=True):
    """All requests of the chosen prompts, a conversation's turns one after the other."""

    name: str  # of the file's format, or "standard"
    asked: tuple[Question, ...]
    num_conversations: int
    num_too_long: int  # requests that are left out: with their answers they exceed the context
    is_chat: bool
    max_tokens: int

    @property
    def prompts(self) -> list[list[int]]:
        """As token ids."""
        return [list(question.token_ids) for question in self.asked]

    @property
    def line(self) -> str:
        """What was asked, for a report."""
        later = sum(question.turn > 0 for question in self.asked)
        categories = len({question.category for question in self.asked})
        parts = [
            f"{self.num_conversations} prompts of {self.name}, evenly over its {categories} "
            f"categories: {len(self.asked)} requests, {later} of them second turns, asked with the "
            "target's own greedy answer to the first",
            "through the chat template" if self.is_chat else "as text: there is no chat template",
        ]
        if self.num_too_long:
            parts.append(f"**{self.num_too_long} left out: too long for the model**")
        return "; ".join(parts)


def prepare_questions(chosen: ChosenPrompts, target: Path, max_tokens: int) -> Questions:
    """Render every turn, and let the target in `target` answer those that others follow.

    The model is loaded only where a conversation has a second turn. Raises InvalidField where no
    prompt fits the model's context beside an answer of `max_tokens`.
    """
    tokenizer = TextTokenizer(target)
    try:
        return _Rendering(tokenizer, target, max_tokens).render(chosen)
    finally:
        tokenizer.close()


class _Rendering:
    """Turns of all conversations, one after the other."""

    def __init__(self, tokenizer: TextTokenizer, target: Path, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._target = target
        self._max_tokens = max_tokens
        self._room = read_spec(target).max_position_embeddings - max_tokens
        self._num_too_long = 0

    def render(self, chosen: ChosenPrompts) -> Questions:
        asked: dict[str, list[Question]] = {record.id: [] for record in chosen.records}
        open_ = list(chosen.records)
        history: dict[str, list[ChatMessage]] = {record.id: [] for record in chosen.records}
        turn = 0
        while open_:
            for record in open_:
                history[record.id].append(ChatMessage(_USER, record.turns[turn]))
            questions = self._fitting(open_, history, turn)
            for question in questions:
                asked[question.id].append(question)
            fitting = {question.id for question in questions}
            turn += 1
            open_ = [r for r in open_ if len(r.turns) > turn and r.id in fitting]
            if open_:
                answers = self._answers([asked[record.id][-1] for record in open_])
                for record, text in zip(open_, answers, strict=True):
                    history[record.id].append(ChatMessage(_ASSISTANT, text))
        flat = tuple(question for own in asked.values() for question in own)
        if not flat:
            problem = f"no prompt fits the {self._room} tokens that answers leave"
            raise InvalidField("--prompts", problem)
        return Questions(
            name=chosen.name,
            asked=flat,
            num_conversations=len(chosen.records),
            num_too_long=self._num_too_long,
            is_chat=self._tokenizer.has_chat_template,
            max_tokens=self._max_tokens,
        )

    def _fitting(
        self, records: Sequence[PromptRecord], history: dict[str, list[ChatMessage]], turn: int
    ) -> list[Question]:
        """The next turn of every conversation whose tokens still fit the model."""
        said = [self._said(history[record.id]) for record in records]
        encoded = asyncio.run(self._encode(said))
        self._num_too_long += sum(len(token_ids) > self._room for token_ids in encoded)
        return [
            Question(
                id=record.id,
                category=record.category,
                turn=turn,
                prompt=prompt,
                token_ids=tuple(token_ids),
            )
            for record, prompt, token_ids in zip(records, said, encoded, strict=True)
            if len(token_ids) <= self._room
        ]

    def _said(self, messages: Sequence[ChatMessage]) -> Said:
        if self._tokenizer.has_chat_template:
            return tuple(messages)
        return "\n\n".join(message.content for message in messages)

    async def _encode(self, prompts: Sequence[Said]) -> list[list[int]]:
        encoding = [
            self._tokenizer.encode(said) if isinstance(said, str)
            else self._tokenizer.encode_chat(said)
            for said in prompts
        ]  # fmt: skip
        return list(await asyncio.gather(*encoding))

    def _answers(self, questions: Sequence[Question]) -> list[str]:
        """Greedy ones, by the model without ballast: the same distribution."""
        longest = max(len(question.token_ids) for question in questions)
        # As many threads as cores would wait for each other wherever the machine has other work.
        torch.set_num_threads(1)
        engine = Engine(load_plainly(self._target), EngineSize(_BATCH, longest + self._max_tokens))
        texts: list[str] = []
        for first in range(0, len(questions), _BATCH):
            batch = questions[first : first + _BATCH]
            job = Job(
                [question.token_ids for question in batch],
                seeds=[0] * len(batch),
                num_tokens=self._max_tokens,
                temperature=0.0,
                ignore_eos=False,
            )
            texts += [self._tokenizer.decode(each.token_ids) for each in engine.run(job).answers]
        return texts


def load_plainly(target: Path) -> Transformer:
    """The model in `target` on the CPU, as a service's default has it, without ballast."""
    return load_model(
        target,
        dtype=torch.float32,
        backend=choose_backend(torch.device("cpu")),
        parallel=TensorParallel(),
        deterministic=True,
    )
