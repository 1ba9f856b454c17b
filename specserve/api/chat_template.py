# pyright: strict
"""A model's chat template: a conversation in, the text that the model is asked with out.

Only what comes with the model is ever rendered as a template, in jinja's immutable sandbox; nothing
a client sends is one. Knows no tokens.
"""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, cast

from jinja2 import TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specserve.api.call import ChatMessage, ChatOptions
from specserve.api.tools.calling import ToolCalling
from specserve.api.tools.turns import Turn
from specserve.errors import InvalidField, Unsupported

_MAX_PROBLEM_CHARS = 200
_MARK = "\ue000continued from here\ue000"  # behind a message; such characters mean nothing
_RESERVED = frozenset({"messages", "add_generation_prompt"})


class ChatTemplate:
    """Of one model. `calling`: how it tells of functions, and how the model calls them."""

    def __init__(
        self,
        source: str,
        special: dict[str, str],
        model: Path,
        tool_call_parser: str,
        token_id_of: Callable[[str], int | None],
    ) -> None:
        """`special`: texts of tokens that it may name. Raises Unsupported for what is none.

        The last two are what `ToolCalling` has them for.
        """
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            names = meta.find_undeclared_variables(environment.parse(source))
        except Exception as error:  # Python may refuse what jinja has made of it
            problem = f"model.target: chat template of {model}: {_one_line(error)}"
            raise Unsupported(problem) from error
        self._special = special
        self.calling = ToolCalling(
            source, takes_tools="tools" in names, wish=tool_call_parser, token_id_of=token_id_of
        )

    def render(self, messages: Sequence[ChatMessage], options: ChatOptions) -> str:
        """The conversation as text. Raises InvalidField; Unsupported where the template fails."""
        turns = self.calling.turns(messages, options.tools)
        if reserved := sorted(_RESERVED & options.variables.keys()):
            raise InvalidField("chat_template_kwargs", f"{reserved[0]!r} is not for clients to set")
        if options.continues_last:
            *before, last = turns
            turns = [*before, last | {"content": last["content"].rstrip() + _MARK}]
        try:
            text = self._text_of(turns, options)
        except TemplateError as error:
            problem = f"refused by the chat template: {_one_line(error)}"
            raise InvalidField("chat", problem) from error
        except Exception as error:  # a template is a program, which may fail in every way
            name = type(error).__name__
            problem = f"chat: the model's chat template fails: {name}: {_one_line(error)}"
            raise Unsupported(problem) from error
        return _until_mark(text) if options.continues_last else text

    def _text_of(self, turns: Sequence[Turn], options: ChatOptions) -> str:
        variables: dict[str, Any] = {"tools": None, **options.variables, **self._special}
        if options.tools:
            variables["tools"] = [tool.shown() for tool in options.tools]
        return self._template.render(
            messages=turns, add_generation_prompt=options.begins_answer, **variables
        )


def _until_mark(text: str) -> str:
    """A conversation without what the template writes behind its last message.

    Looking for the message itself would find it in that, too: "end" is in "<|im_end|>".
    """
    before, found, _ = text.rpartition(_MARK)
    if not found:
        problem = "the chat template does not write the last message as it is"
        raise InvalidField("continue_final_message", problem)
    return before


def _one_line(error: Exception) -> str:
    """What a template says, which may be of any length."""
    return " ".join(str(error).split())[:_MAX_PROBLEM_CHARS] or type(error).__name__


def _environment() -> ImmutableSandboxedEnvironment:
    """As published chat templates expect it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    filters = cast(dict[str, Any], environment.filters)  # pyright: ignore[reportUnknownMemberType]
    names = cast(dict[str, Any], environment.globals)  # pyright: ignore[reportUnknownMemberType]
    filters["tojson"] = _to_json
    names["raise_exception"] = _raise_exception
    names["strftime_now"] = _strftime_now
    return environment


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(value: Any, indent: int | None = None) -> str:  # noqa: ANN401 - whatever it holds
    """Jinja's own filter escapes HTML, which prompts must not be."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
