"""What a client sees of a sample is the same however its tokens come in rounds."""

import pytest

from specserve.api.detokenizer import Detokenizer
from specserve.api.sample_text import SampleText
from specserve.types import FinishReason, SampleDelta, SamplingParams, TokenOrigin

TEXT = b"a fox, a fox"  # a token a byte
PER_ROUND = (1, 2, 3, 5, len(TEXT))


def shown(sampling: SamplingParams, num_in_round: int) -> tuple:
    """Text, number of tokens and end of a sample that runs to its end in rounds of this size."""
    seen = SampleText(0, sampling, Detokenizer([bytes([byte]) for byte in range(256)]))
    texts: list[str] = []
    for start in range(0, len(TEXT), num_in_round):
        tokens = TEXT[start : start + num_in_round]
        origins = [TokenOrigin.DRAFTED] * len(tokens)
        delta = seen.push(SampleDelta("request", 0, list(tokens), origins))
        if delta is not None:
            texts.append(delta.text)
    last = SampleDelta("request", 0, [], [], finish_reason=FinishReason.LENGTH)
    if seen.end is None and (delta := seen.push(last)) is not None:
        texts.append(delta.text)
    assert seen.end is not None
    return "".join(texts), seen.num_tokens, seen.end.finish_reason, seen.end.stop_string


@pytest.mark.parametrize("min_tokens", range(len(TEXT) + 1))
@pytest.mark.parametrize("stop", [[], ["fox"], ["x"], ["ox, a", "fox"], ["wolf"]])
def test_stop_strings_end_a_sample_at_the_same_token_in_rounds_of_any_size(min_tokens, stop):
    sampling = SamplingParams(stop=stop, min_tokens=min_tokens)
    alone, *others = [shown(sampling, size) for size in PER_ROUND]
    assert others == [alone] * len(others)
    if stop == ["fox"]:
        expected = ("a ", 5) if min_tokens <= 5 else ("a fox, a ", 12)
        assert alone[:2] == expected
