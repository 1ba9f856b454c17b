# pyright: strict
"""How one model is told of functions and how it calls them: what its chat template says of that."""

from collections.abc import Callable, Sequence

from specserve.api.call import ChatMessage
from specserve.api.tools.formats import AUTO, FORMATS, HERMES, ToolCallFormat, format_taught_by
from specserve.api.tools.grammar import grammar_of
from specserve.api.tools.parser import ToolCallParser, parser_of
from specserve.api.tools.tool import Tool, ToolUse
from specserve.api.tools.turns import Turn, turns_in_words, turns_with_calls
from specserve.errors import Unsupported
from specserve.types import Grammar

_UNKNOWN = (
    "the chat template writes calls in a form that is not known here; start the service with "
    f"--tool-call-parser {' or '.join(FORMATS)} if the model can be told to write that one"
)


class ToolCalling:
    """Of one model."""

    def __init__(
        self,
        template: str,
        *,
        takes_tools: bool,
        wish: str = AUTO,
        token_id_of: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        """`template`: the source of the chat template, and `takes_tools` whether it reads any.

        `wish` is the name of a format, or AUTO. `token_id_of` a text that is one token.
        """
        self._takes_tools = takes_tools
        taught = format_taught_by(template) if takes_tools else HERMES
        self._form = taught if wish == AUTO else FORMATS[wish]
        self._is_wished = wish != AUTO
        marks = () if self._form is None else (self._form.opening, self._form.closing)
        found = [token_id_of(mark) for mark in marks if mark]
        # Of marks that are a token each, which some tokenizers call special.
        self.mark_ids = frozenset(token_id for token_id in found if token_id is not None)

    @property
    def form(self) -> ToolCallFormat:
        """In which the model writes calls. Raises Unsupported where nobody knows it."""
        if self._form is None:
            raise Unsupported(f"tools: {_UNKNOWN}")
        return self._form

    @property
    def description(self) -> str:
        """Which format that is and why, for people."""
        if self._form is None:
            return f"not read: {_UNKNOWN}"
        why = "as --tool-call-parser says" if self._is_wished else "as the chat template has them"
        if self._takes_tools:
            return f"{self._form.name}, {why}"
        told = "the chat template takes no tools, so the system message tells of them"
        return f"{self._form.name}{f', {why}' if self._is_wished else ''}; {told}"

    def turns(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[Turn]:
        """The conversation for the chat template, which gets `tools` itself where it takes them."""
        if self._takes_tools or not (tools or any(_has_calls(each) for each in messages)):
            return turns_with_calls(messages)
        return turns_in_words(messages, tools, self.form)

    def parser(self, use: ToolUse) -> ToolCallParser:
        """For one sample. Raises Unsupported as `form` does."""
        return parser_of(self.form, use)

    def grammar(self, use: ToolUse, wanted: Grammar | None) -> Grammar | None:
        """As `grammar_of` has it. Raises Unsupported as `form` does, too."""
        return grammar_of(self.form, use, wanted)


def _has_calls(message: ChatMessage) -> bool:
    return message.role == "tool" or bool(message.tool_calls)
