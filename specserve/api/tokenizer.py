"""The model's tokenizer, and its chat template as token ids, off the event loop.

Knows no requests and no sampling.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from specserve.api.call import ROLES, ChatMessage, ChatOptions
from specserve.api.chat_template import ChatTemplate
from specserve.api.detokenizer import Detokenizer, TokenBytes
from specserve.api.tools.calling import ToolCalling
from specserve.api.tools.formats import AUTO
from specserve.errors import InvalidField, Unsupported
from specserve.models.tokenizer_files import load_tokenizer, read_chat_template
from specserve.types import Logprobs
from specserve.validation import Limits

_NUM_THREADS = 2
_MAX_MESSAGES = 4096
_AS_USUAL = ChatOptions()

_ResultT = TypeVar("_ResultT")


class TextTokenizer:
    """Encodes in a small thread pool, so that a long prompt never stops other streams."""

    def __init__(self, model: Path, tool_call_parser: str = AUTO) -> None:
        """Load the tokenizer of a model's folder or file, as `load_tokenizer` does.

        `tool_call_parser`: the format of calls by its name, where its template does not say.
        """
        self._tokenizer = load_tokenizer(model)
        self._token_bytes = TokenBytes(self._tokenizer)
        source, special = read_chat_template(model)
        self._chat: ChatTemplate | None = None
        if source is not None:
            token_id_of = self._tokenizer.token_to_id
            self._chat = ChatTemplate(source, special, model, tool_call_parser, token_id_of)
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="tokenizer")
        self._max_token_len = max(map(len, self._tokenizer.get_vocab()))
        self.limits: Limits | None = None  # known once the target is

    @property
    def has_chat_template(self) -> bool:
        return self._chat is not None

    @property
    def tool_calling(self) -> ToolCalling:
        """How functions are told of and called. Raises Unsupported where there are no chats."""
        return self._template.calling

    @property
    def _template(self) -> ChatTemplate:
        if self._chat is None:
            raise Unsupported("chat: the model has no chat template; send text or token_ids")
        return self._chat

    async def encode_prompt(
        self, prompt: str | list[int] | list[ChatMessage], chat: ChatOptions
    ) -> list[int]:
        """Ids of a prompt in any of its forms."""
        if isinstance(prompt, str):
            return await self.encode(prompt)
        messages = [item for item in prompt if isinstance(item, ChatMessage)]
        if messages:
            return await self.encode_chat(messages, chat)
        return [item for item in prompt if isinstance(item, int)]

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`, with the special tokens that the tokenizer adds by itself or without."""
        self._check_size(len(text))
        return await self.off_loop(
            lambda: self._encode(text, add_special_tokens=add_special_tokens)
        )

    async def encode_chat(
        self, messages: Sequence[ChatMessage], options: ChatOptions = _AS_USUAL
    ) -> list[int]:
        """Ids of the conversation as the chat template writes it, ready for the answer."""
        template = self._template
        if not messages or len(messages) > _MAX_MESSAGES:
            raise InvalidField("chat", f"has {len(messages)} messages; limit 1 to {_MAX_MESSAGES}")
        for index, message in enumerate(messages):
            if message.role not in ROLES:
                problem = f"{message.role[:64]!r} is not one of {', '.join(ROLES)}"
                raise InvalidField(f"chat.messages[{index}].role", problem)
        self._check_size(sum(each.num_chars for each in (*messages, *options.tools)))
        return await self.off_loop(
            lambda: self._encode(template.render(messages, options), add_special_tokens=False)
        )

    def detokenizer(
        self, *, shows_special: bool = False, shown_ids: Collection[int] = ()
    ) -> Detokenizer:
        """For one sample; `shown_ids`: special tokens that are in its text in any case."""
        return Detokenizer(self._token_bytes, shows_special=shows_special, shown_ids=shown_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """All at once; what the pieces of a `Detokenizer` concatenate to."""
        whole = self.detokenizer()
        return whole.push(token_ids) + whole.flush()

    def shown(self, token_id: int) -> bytes:
        """What a token stands for, which may end inside a character; of a special one its name."""
        return self._token_bytes.shown(token_id)

    def with_bytes(self, logprobs: Sequence[Logprobs]) -> list[Logprobs]:
        """The same positions, with what their tokens stand for."""
        shown = self.shown
        return [
            msgspec.structs.replace(
                position,
                token_bytes=shown(position.token_id),
                top_bytes=[shown(token_id) for token_id in position.top_ids],
            )
            for position in logprobs
        ]

    async def off_loop(self, work: Callable[[], _ResultT]) -> _ResultT:
        """What `work` returns, for what takes long where a client sends much."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _check_size(self, num_chars: int) -> None:
        # No token is longer than the longest, so this refuses only what cannot fit anyway,
        # before seconds of a core are spent on finding out.
        if self.limits is None:
            return
        limit = self.limits.max_model_len * self._max_token_len
        if num_chars > limit:
            why = f"as no more fit into {self.limits.context}"
            raise InvalidField("prompt", f"has {num_chars} characters; the limit is {limit}, {why}")

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidField("prompt", "is not valid Unicode text") from error
        if self.limits is not None and ids and max(ids) >= self.limits.vocab_size:
            token, size = self._tokenizer.id_to_token(max(ids)), self.limits.vocab_size
            problem = f"has {token!r}, which the tokenizer knows and the model's {size} tokens lack"
            raise InvalidField("prompt", problem)
        return ids
