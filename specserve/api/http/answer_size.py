# pyright: strict
"""How many log probabilities one answer may have, told by its request before anything is decoded.

What is kept for a whole answer is bounded by the context for texts and token ids, and by nothing
for log probabilities: there are `n` samples of up to 256 prompts, and 21 of each token.
"""

from collections.abc import Sequence

from specserve.api.call import GenerateCall
from specserve.errors import InvalidField
from specserve.validation import MAX_LOGPROBS, MAX_SAMPLES, Limits

# One takes 0.6 KiB where a token has 20 more, 0.9 KiB where it has none, while the answer is
# written: 0.15 (0.4) as it came, 0.4 as an object of JSON, 0.08 as text. So many are 2.4 GiB, and
# one answer of 20 for every token of a context of 131,072 has 2.75 million.
MAX_OF_ANSWER = 4_000_000


def require_answer_size(calls: Sequence[GenerateCall], limits: Limits, *, is_whole: bool) -> None:
    """Raise InvalidField where `calls`, prompts of one request, make too large an answer.

    Not `is_whole`: what is decoded is sent as it comes, and kept of prompts alone. Prompts whose
    log probabilities are asked for have to be encoded.
    """
    of_prompts = sum(_of_prompt(call) for call in calls)
    of_samples = sum(_of_samples(call, limits) for call in calls) if is_whole else 0
    if (number := of_prompts + of_samples) <= MAX_OF_ANSWER:
        return
    field = "prompt_logprobs" if of_prompts > of_samples else "logprobs"
    way = "set stream or a lower max_tokens or n, or " if of_samples else ""
    raise InvalidField(
        field,
        f"the answer could have {number} log probabilities, of each prompt prompt_logprobs + 1 a "
        "token and logprobs (of chats top_logprobs) + 1 for each of max_tokens x n; the limit is "
        f"{MAX_OF_ANSWER}: {way}send fewer prompts at once, or ask for fewer a token",
    )


def _of_prompt(call: GenerateCall) -> int:
    most = call.sampling.prompt_logprobs
    return 0 if most is None else len(call.prompt) * _of_token(most)


def _of_samples(call: GenerateCall, limits: Limits) -> int:
    sampling = call.sampling
    if sampling.logprobs is None:
        return 0
    # Of values that are out of their ranges as little as may be: they are refused as that, later.
    num_samples = min(max(sampling.n, 0), MAX_SAMPLES)
    num_tokens = min(max(sampling.max_tokens, 0), limits.max_model_len)
    return num_samples * num_tokens * _of_token(sampling.logprobs)


def _of_token(most: int) -> int:
    return min(max(most, 0), MAX_LOGPROBS) + 1
