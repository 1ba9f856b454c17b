"""Requests whose own fields shape what is drafted for them, as few tokens as tests have."""

from specserve.sampling.state import SamplingState
from specserve.types import SamplingParams

SHAPED = " shaped"  # of a method's name
_PROMPT = [3, 3, 8, 21, 40]
_FIELDS: list[dict] = [
    {"top_p": 0.8, "top_k": 30},
    {"repetition_penalty": 1.5, "frequency_penalty": 0.6, "presence_penalty": -0.4},
    {"logit_bias": {7: 3.0, 9: -100.0}, "min_p": 0.02},
    {},
    {"stop_token_ids": (4, 5, 6), "min_tokens": 2, "frequency_penalty": 3.0},
]


def states_under(temperatures) -> list[SamplingState]:
    """One a block, in different places of their texts."""
    states = []
    for place, temperature in enumerate(temperatures.tolist()):
        fields = {"temperature": temperature, "max_tokens": 50} | _FIELDS[place % len(_FIELDS)]
        state = SamplingState(SamplingParams(**fields), seed=place, prompt_token_ids=_PROMPT)
        for token_id in range(place % 4):
            state.append(token_id)
        states.append(state)
    return states
