"""A few short requests that between them ask for everything a request can ask for."""

import msgspec

from specserve.types import Request
from tests.target_node.in_process import request

PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 3, 23, 8, 46]
FIELDS: dict[str, dict] = {
    "plain": {},
    "greedy": {"temperature": 0.0, "logit_bias": {4: 2.0}, "prompt_logprobs": 1, "logprobs": 0},
    "truncated": {"top_p": 0.9},
    "several": {"temperature": 0.7, "n": 2, "stop_token_ids": (7, 9)},
    "everything": {
        "top_p": 0.95,
        "top_k": 30,
        "min_p": 0.01,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.2,
        "logit_bias": {4: 3.0, 5: -100.0},
        "min_tokens": 4,
        "logprobs": 2,
        "prompt_logprobs": 1,
    },
}


def every_request(*, seeded: bool = False, max_tokens: int = 8) -> list[Request]:
    """With `seeded` they live under the coupled method, else under the service's."""
    made = [
        request(name, PROMPT[: 15 - 3 * place], seed=place + 1, max_tokens=max_tokens, **fields)
        for place, (name, fields) in enumerate(FIELDS.items())
    ]
    return [msgspec.structs.replace(r, seeded_by_user=seeded) for r in made]


def both_kinds(*, max_tokens: int = 8) -> list[Request]:
    """Seeded ones and others: two methods in one batch."""
    seeded = every_request(seeded=True, max_tokens=max_tokens)[::2]
    renamed = [msgspec.structs.replace(r, request_id=f"seeded {r.request_id}") for r in seeded]
    return every_request(max_tokens=max_tokens) + renamed
