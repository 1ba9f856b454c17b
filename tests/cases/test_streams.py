"""Cases 6, 8 and 9: text that is streamed, spaces in it, and what clients count by it."""

import time

import pytest
from tokenizers import Tokenizer

from specserve.settings.target_source import EMBEDDED_TARGET
from tests.cases.apis import HTTP, Service, ask, ask_plainly, events, stream
from tests.cases.parts import case

ALPHABET = "ABCDEFGHIJKLMNOP\nABCDEFGHIJKLMNOP\nABCDEFGHIJKLMNOP\n"  # goes on and on
GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 48}


def earliest(text: str, stops: list[str]) -> tuple[int, str | None]:
    """Where `text` is cut and by which of `stops`: who completes first, of two the longer."""
    found = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
    if not found:
        return len(text), None
    end, _, stop = min(found)
    return end - len(stop), stop


STOPS = {
    "in three tokens or more": ["DEFGHIJ"],
    "prefixes of each other": ["DEFGHIJKL", "DEFGHI", "DEFG"],
    "ends of each other": ["EFGHIJ", "GHIJ", "IJ", "J"],
    "overlapping": ["CDEFGZ", "EFGHIJK", "FGHIY", "GHIJKLMNOPQ"],
    "nearly there": ["DEFGHIJX", "NOPA", "\nAC"],
    "across a line": ["P\nA", "NOP\nAB!", "SIS\nABC"],
}


@pytest.mark.slow
@case(6)
def test_no_part_of_a_stop_string_is_streamed(api: str, service: Service):
    text = ask_plainly(service, ALPHABET, **GREEDY).only.text
    assert "ABCDEFGHIJKLMNOP" in text
    for stops in STOPS.values():
        whole = ask(api, service, ALPHABET, **GREEDY, stop=stops)
        streamed, deltas = stream(api, service, ALPHABET, **GREEDY, stop=stops)
        cut, stop = earliest(text, stops)
        assert whole.only.text == "".join(delta.text for delta in deltas) == text[:cut]
        assert (whole.only.stop, streamed) == (stop, whole)


@pytest.mark.slow
@case(6)
def test_text_held_for_a_stop_string_that_does_not_come_is_not_lost(api: str, service: Service):
    text = ask_plainly(service, ALPHABET, **GREEDY).only.text
    never = [text[: len(text) - 1] + "!", text[3:] + "?"]  # held to the very end
    streamed, deltas = stream(api, service, ALPHABET, **GREEDY, stop=never)
    assert "".join(delta.text for delta in deltas) == streamed.only.text == text
    assert streamed.only.finish_reason == "length"


@pytest.mark.slow
@case(8)
def test_spaces_are_those_of_the_tokenizer(api: str, service: Service):
    """Text is what the tokenizer library decodes of prompt and answer, less the prompt."""
    tokenizer = Tokenizer.from_file(str(EMBEDDED_TARGET / "tokenizer.json"))
    prompt = tokenizer.encode("x =").ids
    vocabulary = tokenizer.get_vocab()
    spaces = [i for token, i in vocabulary.items() if set(token) <= set("ĠĊĉ")]
    assert len(spaces) > 3
    for first in (["Ġname"], ["Ġ"], ["ĠĠĠ"]):
        forced = {"logit_bias": {vocabulary[token]: 100.0 for token in first}}
        fields = {"temperature": 0, "max_tokens": 5, "ignore_eos": True, **forced}
        assert_decoded(api, service, tokenizer, prompt, fields)
    runs = {"logit_bias": dict.fromkeys(spaces, 100.0), "temperature": 1, "seed": 3}
    found = assert_decoded(api, service, tokenizer, prompt, {**runs, "max_tokens": 24})
    assert found.isspace()


def assert_decoded(
    api: str, service: Service, tokenizer: Tokenizer, prompt: list[int], fields: dict
) -> str:
    answer = ask(api, service, prompt, **fields)
    whole = tokenizer.decode([*prompt, *answer.only.token_ids])
    assert answer.only.text == whole.removeprefix(tokenizer.decode(prompt))
    assert answer.only.text.startswith((" ", "\n", "\t"))
    streamed, _ = stream(api, service, prompt, **fields)
    assert streamed == answer
    return answer.only.text


@pytest.mark.slow
@case(9)
def test_tokens_of_a_stream_add_up_to_its_usage(api: str, service: Service):
    fields = {**GREEDY, "max_tokens": 60, "n": 2}
    answer, deltas = stream(api, service, ALPHABET, **fields)
    assert sum(len(delta.token_ids) for delta in deltas) == answer.num_generated_tokens == 120
    assert len(deltas) < 120  # who counted chunks would count too few
    assert answer == ask(api, service, ALPHABET, **fields)


@pytest.mark.slow
@case(9, apis=["gRPC"])
def test_times_of_an_answer_are_those_a_client_sees(api: str, service: Service):
    times = [time.monotonic()]
    deltas = service.client.stream(ALPHABET, **GREEDY | {"max_tokens": 150})
    for _ in deltas:
        times.append(time.monotonic())
    timings = deltas.finished.timings
    seen_first_s, seen_all_s = times[1] - times[0], time.monotonic() - times[0]
    assert 0 < timings.time_to_first_token_s <= seen_first_s
    assert timings.time_to_first_token_s + timings.decode_s <= timings.total_s + 0.01
    assert timings.total_s <= seen_all_s
    # However many tokens the first delta has, decoding begins behind them.
    assert timings.decode_s > 0.5 * (times[-1] - times[1]) - 0.2


@pytest.mark.slow
@case(9, apis=[HTTP])
def test_usage_counts_along_where_a_client_asks_for_it(api: str, service: Service):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(events(service, ALPHABET, **GREEDY, stream_options=options))
    counted, num_tokens = [], 0
    for chunk in chunks:
        num_tokens += sum(len(c.get("token_ids", ())) for c in chunk["choices"])
        assert chunk["usage"]["completion_tokens"] == num_tokens
        counted.append(num_tokens)
    assert counted[-1] == 48
    assert len(set(counted)) > 5
    assert chunks[-1]["choices"] == []
    plain = list(events(service, ALPHABET, **GREEDY))
    assert [chunk["usage"] for chunk in plain[:-1]] == [None] * (len(plain) - 1)
    assert plain[-1]["usage"] == chunks[-1]["usage"]
