"""OpenAI's /v1/responses of real processes, asked by OpenAI's own client."""

import json
import time
from collections.abc import Iterator

import pytest
from openai import NotFoundError, OpenAI
from pydantic import BaseModel, Field

from tests.service.chaos import end
from tests.service.launched import Launched
from tests.service.test_openai import client, service, url_of

__all__ = ["client", "service"]

pytestmark = pytest.mark.slow

QUESTION = "What is the capital of France?"


class Country(BaseModel):
    """As a client asks for it; lengths keep the answer short."""

    name: str = Field(max_length=16)
    capital: str = Field(max_length=16)


def until_ended(client: OpenAI, response_id: str):
    deadline_s = time.monotonic() + 60
    while (found := client.responses.retrieve(response_id)).status == "in_progress":
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return found


def test_a_response_is_the_chat_that_it_is(client: OpenAI):
    """Whole, streamed, in the background, and continued as a conversation of its client's."""
    model = client.models.list().data[0].id
    turns = [{"role": "user", "content": "def main"}]
    same = {"model": model, "temperature": 0}
    chat = client.chat.completions.create(messages=turns, max_tokens=24, **same)
    text = chat.choices[0].message.content
    asked = {"input": "def main", "max_output_tokens": 24, **same}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
    made = until_ended(client, client.responses.create(background=True, **asked).id)
    assert whole.output_text == "".join(pieces) == made.output_text == text
    assert whole.usage.output_tokens == made.usage.output_tokens == chat.usage.completion_tokens
    turns += [{"role": "assistant", "content": text}, {"role": "user", "content": "return"}]
    chat = client.chat.completions.create(messages=turns, max_tokens=24, **same)
    next_one = client.responses.create(**asked | {"input": "return"}, previous_response_id=whole.id)
    assert next_one.output_text == chat.choices[0].message.content
    listed = client.responses.input_items.list(next_one.id, order="asc")
    assert [item.content[0].text for item in listed] == ["def main", text, "return"]


def test_who_cancels_or_deletes_gives_the_place_back(client: OpenAI, service: Launched):
    long = {"input": "def main", "background": True, "extra_body": {"ignore_eos": True}}
    model = client.models.list().data[0].id
    first, second = (client.responses.create(model=model, **long) for _ in range(2))
    assert client.responses.cancel(first.id).status in ("cancelled", "incomplete")
    client.responses.delete(second.id)
    told = client.get("../server_info", cast_to=object)
    assert told["num_in_flight"] == 0
    with pytest.raises(NotFoundError):
        client.responses.retrieve(second.id)


def test_a_background_stream_is_taken_up_again(client: OpenAI):
    model = client.models.list().data[0].id
    asked = {"model": model, "input": "def main", "max_output_tokens": 40, "temperature": 0}
    stream = client.responses.create(background=True, stream=True, **asked)
    created = next(stream)
    stream.close()
    events = list(client.responses.retrieve(created.response.id, stream=True, starting_after=0))
    assert [event.sequence_number for event in events] == list(range(1, len(events) + 1))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text
    assert text == client.responses.retrieve(created.response.id).output_text


@pytest.fixture
def smollm2() -> Iterator[OpenAI]:
    launched = Launched("--target", "smollm2", "--speculation", "sync", "--max-model-len", "1024")
    try:
        with OpenAI(base_url=url_of(launched), api_key="none", max_retries=0) as client:
            yield client
    finally:
        end(launched)


def test_the_real_model_answers_goes_on_and_keeps_to_a_schema(smollm2: OpenAI):
    model = smollm2.models.list().data[0].id
    asked = {"model": model, "temperature": 0, "max_output_tokens": 48}
    first = smollm2.responses.create(input=QUESTION, **asked)
    assert (first.output_text, first.status) == ("The capital of France is Paris.", "completed")
    country = smollm2.responses.parse(
        input="Tell me about it, as JSON.",
        previous_response_id=first.id,
        text_format=Country,
        **asked,
    )
    assert country.output_parsed == Country(**json.loads(country.output_text))
    assert country.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert country.usage.input_tokens_details.cached_tokens > 0
