# pyright: strict
"""A script for `openai` as it comes from PyPI, of /v1/responses: `python FILE URL NUM_TOKENS`."""

import asyncio
import sys
import time

from openai import AsyncOpenAI, NotFoundError, OpenAI
from openai.types.responses import FunctionToolParam, Response, ResponseInputParam
from pydantic import BaseModel, Field

QUESTION = "What is the capital of France? Answer in one sentence."
WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city, now.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 16}},
        "required": ["city"],
    },
    "strict": None,
}


class Country(BaseModel):
    """What an answer is parsed to."""

    name: str = Field(max_length=16)
    capital: str = Field(max_length=16)


def say(what: str, found: object) -> None:
    """A line of the output."""
    sys.stdout.write(f"{what}: {found}\n")


def told(response: Response) -> str:
    """What there is of it, in a line."""
    return f"{response.status}, {response.output_text!r}"


def ask_blocking(client: OpenAI, model: str, num_tokens: int) -> None:
    """Whole, as a stream, as a schema has it; and what came before."""
    first = client.responses.create(
        model=model, input=QUESTION, max_output_tokens=num_tokens, temperature=0
    )
    say("response", told(first))
    say("  usage", first.usage)
    kinds: list[str] = []
    with client.responses.stream(
        model=model, input=QUESTION, max_output_tokens=num_tokens, temperature=0
    ) as stream:
        for event in stream:
            if not kinds or kinds[-1] != event.type:
                kinds.append(event.type)
        final = stream.get_final_response()
    say("streamed", " -> ".join(kinds))
    say("  same text", final.output_text == first.output_text)
    country = client.responses.parse(
        model=model,
        input="Tell me about that country, as JSON.",
        previous_response_id=first.id,
        text_format=Country,
        max_output_tokens=num_tokens,
        temperature=0,
    )
    say("parsed, of a conversation that the service keeps", country.output_parsed)
    items = client.responses.input_items.list(country.id, order="asc")
    say("  its items", [getattr(item, "role", item.type) for item in items])


def ask_for_a_call(client: OpenAI, model: str, num_tokens: int) -> None:
    """A function that has to be called, and what comes of its result."""
    turns: ResponseInputParam = [{"role": "user", "content": "What is the weather like in Paris?"}]
    asked = client.responses.create(
        model=model,
        input=turns,
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=num_tokens,
        temperature=0,
    )
    calls = [item for item in asked.output if item.type == "function_call"]
    say("called", [(call.name, call.arguments) for call in calls])
    answer = client.responses.create(
        model=model,
        previous_response_id=asked.id,
        input=[
            {"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 21 degrees"}
            for call in calls
        ],
        max_output_tokens=num_tokens,
        temperature=0,
    )
    say("with its result", told(answer))


def ask_in_the_background(client: OpenAI, model: str, num_tokens: int) -> None:
    """Made while nobody waits, followed from the middle, cancelled."""
    story = "Tell me a long story about a fox."
    stream = client.responses.create(
        model=model,
        input=story,
        max_output_tokens=num_tokens,
        temperature=0,
        background=True,
        stream=True,
    )
    created = next(iter(stream))
    stream.close()
    assert created.type == "response.created"
    say("in the background", created.response.status)
    again = client.responses.retrieve(created.response.id, stream=True, starting_after=3)
    events = list(again)
    say("  taken up again at event", events[0].sequence_number)
    say("  ends with", events[-1].type)
    say("  asked for again", told(client.responses.retrieve(created.response.id)))
    long = client.responses.create(
        model=model, input=story, background=True, extra_body={"ignore_eos": True}
    )
    time.sleep(0.5)
    say("cancelled", client.responses.cancel(long.id).status)
    client.responses.delete(long.id)
    try:
        client.responses.retrieve(long.id)
    except NotFoundError as error:
        say("deleted", error.message)


async def ask_asynchronously(url: str, model: str, num_tokens: int) -> None:
    """Four side by side."""
    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        asked = [
            client.responses.create(
                model=model,
                input=QUESTION,
                max_output_tokens=num_tokens,
                extra_body={"seed": seed},
            )
            for seed in range(4)
        ]
        for seed, found in enumerate(await asyncio.gather(*asked)):
            say(f"async, seed {seed}", told(found))


def main() -> None:
    """The whole conversation."""
    url, num_tokens = sys.argv[1], int(sys.argv[2])
    with OpenAI(base_url=url, api_key="none") as client:
        model = client.models.list().data[0].id
        say("model", model)
        asyncio.run(ask_asynchronously(url, model, num_tokens))
        ask_blocking(client, model, num_tokens)
        ask_for_a_call(client, model, num_tokens)
        ask_in_the_background(client, model, num_tokens)


if __name__ == "__main__":
    main()
