"""The model's tokenizer and chat template, off the event loop.

Knows no requests and no sampling. Only what comes with the model is ever rendered as a template, in
jinja's immutable sandbox; nothing a client sends is one.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specserve.api.call import ROLES, ChatMessage, ChatOptions
from specserve.api.detokenizer import Detokenizer, TokenBytes
from specserve.errors import InvalidField, Unsupported
from specserve.models.tokenizer_files import load_tokenizer, read_chat_template
from specserve.types import Logprobs
from specserve.validation import Limits

_NUM_THREADS = 2
_MAX_MESSAGES = 4096
_MAX_PROBLEM_CHARS = 200

_MARK = "\ue000continued from here\ue000"  # behind a message; such characters mean nothing
_AS_USUAL = ChatOptions()
_RESERVED = frozenset({"messages", "add_generation_prompt"})

_ResultT = TypeVar("_ResultT")
Render = Callable[[list[dict[str, str]], ChatOptions], str]


class TextTokenizer:
    """Encodes in a small thread pool, so that a long prompt never stops other streams."""

    def __init__(self, model: Path) -> None:
        """Load the tokenizer of a model's folder or file, as `load_tokenizer` does."""
        self._tokenizer = load_tokenizer(model)
        self._token_bytes = TokenBytes(self._tokenizer)
        self._chat = _chat_template(model)
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="tokenizer")
        self._max_token_len = max(map(len, self._tokenizer.get_vocab()))
        self.limits: Limits | None = None  # known once the target is

    @property
    def has_chat_template(self) -> bool:
        return self._chat is not None

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
        if self._chat is None:
            raise Unsupported("chat: the model has no chat template; send text or token_ids")
        if not messages or len(messages) > _MAX_MESSAGES:
            raise InvalidField("chat", f"has {len(messages)} messages; limit 1 to {_MAX_MESSAGES}")
        for index, message in enumerate(messages):
            if message.role not in ROLES:
                problem = f"{message.role[:64]!r} is not one of {', '.join(ROLES)}"
                raise InvalidField(f"chat.messages[{index}].role", problem)
        self._check_size(sum(len(message.content) for message in messages))
        return await self.off_loop(lambda: self._encode_chat(messages, options))

    def detokenizer(self, *, shows_special: bool = False) -> Detokenizer:
        """For one sample."""
        return Detokenizer(self._token_bytes, shows_special=shows_special)

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

    def _encode_chat(
        self, messages: Sequence[ChatMessage], options: ChatOptions = _AS_USUAL
    ) -> list[int]:
        assert self._chat is not None
        turns = [{"role": message.role, "content": message.content} for message in messages]
        if reserved := sorted(_RESERVED & options.variables.keys()):
            raise InvalidField("chat_template_kwargs", f"{reserved[0]!r} is not for clients to set")
        if options.continues_last:
            turns[-1]["content"] = turns[-1]["content"].rstrip() + _MARK
        try:
            text = self._chat(turns, options)
        except TemplateError as error:
            problem = f"refused by the chat template: {_one_line(error)}"
            raise InvalidField("chat", problem) from error
        except Exception as error:  # a template is a program, which may fail in every way
            name = type(error).__name__
            problem = f"chat: the model's chat template fails: {name}: {_one_line(error)}"
            raise Unsupported(problem) from error
        if options.continues_last:
            text = _until_mark(text)
        return self._encode(text, add_special_tokens=False)


def _until_mark(text: str) -> str:
    """A conversation without what the template writes behind its last message.

    Looking for the message itself would find it in that, too: "end" is in "<|im_end|>".
    """
    before, found, _ = text.rpartition(_MARK)
    if not found:
        problem = "the chat template does not write the last message as it is"
        raise InvalidField("continue_final_message", problem)
    return before


def _chat_template(model: Path) -> Render | None:
    source, special = read_chat_template(model)
    if source is None:
        return None
    try:
        template = _environment().from_string(source)
    except Exception as error:  # Python may refuse what jinja has made of it
        problem = f"model.target: chat template of {model}: {_one_line(error)}"
        raise Unsupported(problem) from error
    return lambda turns, options: _render(template, turns, options, special)


def _render(
    template: Template,
    turns: list[dict[str, str]],
    options: ChatOptions,
    special: dict[str, str],
) -> str:
    variables = {"tools": None, **options.variables, **special}
    return template.render(messages=turns, add_generation_prompt=options.begins_answer, **variables)


def _one_line(error: Exception) -> str:
    """What a template says, which may be of any length."""
    return " ".join(str(error).split())[:_MAX_PROBLEM_CHARS] or type(error).__name__


def _environment() -> ImmutableSandboxedEnvironment:
    """As published chat templates expect it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:  # noqa: ANN401 - whatever it holds
    """Jinja's own filter escapes HTML, which prompts must not be."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
