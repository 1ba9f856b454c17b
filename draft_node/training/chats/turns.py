# pyright: strict
"""Where the user speaks in what a chat template writes."""

from collections.abc import Sequence

from specserve.api.call import ChatMessage
from specserve.api.tokenizer import TextTokenizer


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
