# pyright: strict
"""How models write calls: the formats that are known, and which one a chat template teaches.

Names are vLLM's. A format says how a call is written; reading one is `specserve.api.tools.parser`,
and forcing one `specserve.api.tools.grammar`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from specserve.api.tools.tool import ToolCall

AUTO = "auto"  # the one that the chat template teaches


@dataclass(frozen=True)
class ToolCallFormat:
    """A call is a JSON object with a name and arguments, between marks or bare."""

    name: str
    opening: str  # before each call; empty: an answer that begins with an object is one
    closing: str
    arguments_key: str
    is_parallel: bool  # templates that teach it know several calls of one answer

    def written(self, calls: Sequence[ToolCall]) -> str:
        """What a model would have written, of calls whose arguments are JSON."""
        return (self.separator).join(self._one(call) for call in calls)

    @property
    def separator(self) -> str:
        """Between two calls."""
        return "\n" if self.opening else "; "

    @property
    def before(self) -> str:
        """What opens a call, up to its JSON."""
        return f"{self.opening}\n" if self.opening else ""

    @property
    def behind(self) -> str:
        return f"\n{self.closing}" if self.closing else ""

    def head(self, name: str) -> str:
        """The call's JSON up to its arguments."""
        shown = json.dumps(name, ensure_ascii=False)
        return f'{{"name": {shown}, "{self.arguments_key}": '

    def _one(self, call: ToolCall) -> str:
        return f"{self.before}{self.head(call.name)}{call.arguments or '{}'}}}{self.behind}"


HERMES = ToolCallFormat("hermes", "<tool_call>", "</tool_call>", "arguments", is_parallel=True)
LLAMA3_JSON = ToolCallFormat("llama3_json", "", "", "parameters", is_parallel=False)
FORMATS = {each.name: each for each in (HERMES, LLAMA3_JSON)}


def format_taught_by(template: str) -> ToolCallFormat | None:
    """The format that a chat template writes calls in; None: one that is not known here.

    Of a template that takes tools. Qwen3-Coder's has the same marks around calls that are no JSON.
    """
    if HERMES.opening in template:
        return None if "<function=" in template else HERMES
    if "<|python_tag|>" in template or '"parameters": ' in template:
        return LLAMA3_JSON
    return None
