# pyright: strict
"""Tool calls by `openai` as it comes from PyPI: `python ask_tools.py URL NUM_TOKENS`."""

import sys
from typing import Any

from openai import BadRequestError, OpenAI, pydantic_function_tool
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel, Field

Messages = list[ChatCompletionMessageParam]


class GetWeather(BaseModel):
    """The weather in a city."""

    city: str = Field(max_length=20)
    days: int = Field(ge=1, le=7)


class GetTime(BaseModel):
    """The time in a city."""

    city: str = Field(max_length=20)


TOOLS: list[ChatCompletionToolParam] = [
    pydantic_function_tool(GetWeather),
    pydantic_function_tool(GetTime),
]
# A model of this size calls nothing by itself; what it repeats is read like any call.
CALL = '<tool_call>\n{"name": "GetTime", "arguments": {"city": "Oslo"}}\n</tool_call>'


def say(what: str, found: object) -> None:
    """A line of the output."""
    sys.stdout.write(f"{what}: {found}\n")


def user(text: str) -> Messages:
    return [{"role": "user", "content": text}]


def calls_of(message: Any) -> list[Any]:  # noqa: ANN401
    """Those of an answer."""
    return message.tool_calls or []


class Asking:
    """One model, asked greedily."""

    def __init__(self, client: OpenAI, model: str, num_tokens: int) -> None:
        self._client = client
        self._options: dict[str, Any] = {
            "model": model, "max_tokens": num_tokens, "temperature": 0, "tools": TOOLS,
        }  # fmt: skip

    def whole(self, what: str, messages: Messages, **options: Any) -> Any:  # noqa: ANN401
        """The message; its text, its calls and why it ended are told."""
        create: Any = self._client.chat.completions.create
        answer: Any = create(messages=messages, **self._options, **options).choices[0]
        calls = [
            f"{each.function.name}({each.function.arguments})" for each in calls_of(answer.message)
        ]
        say(what, f"{answer.finish_reason}, content {answer.message.content!r}, calls {calls}")
        return answer.message

    def streamed(self, what: str, messages: Messages, **options: Any) -> None:  # noqa: ANN401
        """Every chunk that has something to say."""
        say(what, "")
        stream = self._client.chat.completions.create(
            messages=messages, stream=True, **self._options, **options
        )
        for chunk in stream:
            choice = chunk.choices[0]
            delta = choice.delta.model_dump(exclude_none=True)
            if choice.finish_reason:
                say("  ", choice.finish_reason)
            elif delta.get("content") or delta.get("tool_calls"):
                delta.pop("role", None)
                say("  ", delta)

    def parsed(self) -> None:
        """By the library's own helpers, which know the models that functions are made of."""
        with self._client.chat.completions.stream(
            messages=user("What time is it in Oslo?"), tool_choice="required", **self._options
        ) as stream:
            for event in stream:
                if event.type == "tool_calls.function.arguments.done":
                    say("parsed by the stream", repr(event.parsed_arguments))
            calls = stream.get_final_completion().choices[0].message.tool_calls or []
        say("parsed at its end", repr(calls[0].function.parsed_arguments))

    def refused(self, what: str, **options: Any) -> None:  # noqa: ANN401
        try:
            self._client.chat.completions.create(messages=user("Hello."), **self._options | options)
        except BadRequestError as error:
            say(f"{what} is refused", error.message)


def main() -> None:
    """The whole conversation."""
    url, num_tokens = sys.argv[1], int(sys.argv[2])
    with OpenAI(base_url=url, api_key="none") as client:
        asking = Asking(client, client.models.list().data[0].id, num_tokens)
        weather = user("What is the weather in Paris this week?")
        repeat = user(f"Repeat after me: {CALL}")
        asking.whole("auto, a question that needs none", user("What is the capital of France?"))
        asking.whole("auto, a call", repeat)
        asking.streamed("auto, a call, streamed", repeat)
        asking.whole("required", weather, tool_choice="required")
        named = {"type": "function", "function": {"name": "GetTime"}}
        asking.whole("named", weather, tool_choice=named)
        asking.whole("none", repeat, tool_choice="none")
        one: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
        asking.streamed("required, one call, streamed", weather, **one)
        message = asking.whole("required, one call", weather, **one)
        (call,) = message.tool_calls
        returned: Messages = [
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "18 degrees, rain"},
        ]
        asking.whole("what it returned", [*weather, *returned], tool_choice="none")
        asking.parsed()
        nobody = {"type": "function", "function": {"name": "GetMoney"}}
        asking.refused("a function that was not offered", tool_choice=nobody)
        asking.refused("two of one name", tools=[TOOLS[0], TOOLS[0]])


if __name__ == "__main__":
    main()
