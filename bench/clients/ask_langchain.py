"""Tool calls by `langchain-openai` as it comes from PyPI: `python ask_langchain.py URL TOKENS`."""

import sys
from typing import Any, cast

from langchain_core.messages import HumanMessage, ToolMessage  # pyright: ignore
from langchain_core.tools import tool  # pyright: ignore
from langchain_openai import ChatOpenAI  # pyright: ignore
from openai import OpenAI
from pydantic import BaseModel, Field


@tool
def get_weather(city: str, unit: str = "celsius") -> str:
    """The weather in a city now."""
    return f"18 degrees {unit} and rain in {city}"


class Country(BaseModel):
    """A country."""

    name: str = Field(max_length=20)
    capital: str = Field(max_length=20)
    millions: int = Field(ge=1, le=2000)


def say(what: str, found: object) -> None:
    """A line of the output."""
    sys.stdout.write(f"{what}: {found}\n")


def ask_with_tools(model: Any) -> None:  # noqa: ANN401 - the library's types are not here
    """Bound tools, forced and free, whole and streamed, and what a call returned."""
    question = HumanMessage("What is the weather in Paris?")
    forced = model.bind_tools([get_weather], tool_choice="get_weather")
    answer = forced.invoke([question])
    say("bind_tools, forced", answer.tool_calls)
    say("  finish_reason", answer.response_metadata["finish_reason"])
    merged = None
    num_chunks = 0
    for chunk in forced.stream([question]):
        num_chunks += bool(chunk.tool_call_chunks)
        merged = chunk if merged is None else merged + chunk
    say("bind_tools, forced, streamed", merged.tool_calls if merged else None)
    say("  in several chunks", num_chunks > 1)
    say("  same arguments", merged and merged.tool_calls[0]["args"] == answer.tool_calls[0]["args"])
    free = model.bind_tools([get_weather])
    reply = free.invoke([HumanMessage("What is the capital of France?")])
    say("bind_tools, free", f"{reply.content!r}, calls {reply.tool_calls}")
    any_one = model.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)
    call = any_one.invoke([question])
    say("bind_tools, any", call.tool_calls)
    (made,) = call.tool_calls
    returned = ToolMessage(cast(Any, get_weather).invoke(made["args"]), tool_call_id=made["id"])
    say("what it returned", repr(model.invoke([question, call, returned]).content))


def ask_for_structure(model: Any) -> None:  # noqa: ANN401
    """The same structure by each of the library's methods."""
    for method in ("function_calling", "json_schema"):
        structured = model.with_structured_output(Country, method=method)
        say(f"with_structured_output, {method}", repr(structured.invoke("Tell me about France.")))
    structured = model.with_structured_output(Country, method="function_calling", strict=True)
    say("  strict, streamed", repr(list(structured.stream("Tell me about Japan."))[-1]))


def main() -> None:
    """The whole conversation."""
    url, num_tokens = sys.argv[1], int(sys.argv[2])
    with OpenAI(base_url=url, api_key="none") as client:
        name = client.models.list().data[0].id
    model = ChatOpenAI(
        base_url=url, api_key="none", model=name, temperature=0, max_tokens=num_tokens
    )
    ask_with_tools(model)
    ask_for_structure(model)


if __name__ == "__main__":
    main()
