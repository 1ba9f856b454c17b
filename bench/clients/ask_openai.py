# pyright: strict
"""A script for `openai` as it comes from PyPI: `python ask_openai.py URL NUM_TOKENS`."""

import asyncio
import sys

from openai import AsyncOpenAI, BadRequestError, OpenAI
from openai.types.chat import ChatCompletionMessageParam

QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
]
PROMPT = "A list of the days of the week: Monday, Tuesday, Wednesday, Thursday,"


def say(what: str, found: object) -> None:
    """A line of the output."""
    sys.stdout.write(f"{what}: {found}\n")


def ask_blocking(client: OpenAI, model: str, num_tokens: int) -> None:
    """Whole answers and streams, of chats and of completions."""
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=num_tokens, temperature=0
    )
    say("chat", repr(answer.choices[0].message.content))
    say("  usage", answer.usage)
    say("  metrics", (answer.model_extra or {}).get("metrics"))
    stream = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        max_tokens=num_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    pieces: list[str] = []
    for chunk in stream:
        pieces += [choice.delta.content or "" for choice in chunk.choices]
        if chunk.usage:
            say("  usage of the stream", chunk.usage)
    say("chat, streamed", repr("".join(pieces)))
    say("  same text", "".join(pieces) == answer.choices[0].message.content)
    completion = client.completions.create(
        model=model, prompt=PROMPT, max_tokens=num_tokens, temperature=0, logprobs=2, stop="\n"
    )
    say("completion", repr(completion.choices[0].text))
    say("  finish_reason", completion.choices[0].finish_reason)
    several = client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=12, temperature=1, seed=7, n=2
    )
    say("two samples of a seed", [choice.text for choice in several.choices])
    try:
        client.chat.completions.create(model=model, messages=QUESTION, temperature=-1)
    except BadRequestError as error:
        say("a temperature of -1 is refused", error.message)


async def ask_asynchronously(url: str, model: str, num_tokens: int) -> None:
    """Four streams side by side."""
    async with AsyncOpenAI(base_url=url, api_key="none") as client:

        async def stream(seed: int) -> str:
            chunks = await client.chat.completions.create(
                model=model, messages=QUESTION, max_tokens=num_tokens, seed=seed, stream=True
            )
            return "".join([each.choices[0].delta.content or "" async for each in chunks])

        for seed, text in enumerate(await asyncio.gather(*map(stream, range(4)))):
            say(f"async, streamed, seed {seed}", repr(text))


def main() -> None:
    """The whole conversation."""
    url, num_tokens = sys.argv[1], int(sys.argv[2])
    with OpenAI(base_url=url, api_key="none") as client:
        model = client.models.list().data[0].id
        say("model", model)
        asyncio.run(ask_asynchronously(url, model, num_tokens))
        ask_blocking(client, model, num_tokens)


if __name__ == "__main__":
    main()
