"""transformers' `generate` in a process of its own, run by the Python of its own environment.

Imports nothing of ours: that environment has transformers and torch alone. The first line it reads
says what to load; every other one is a job, answered by one line of JSON.
"""

import json
import os
import sys
import time
from typing import Any

import torch
import transformers
from transformers.generation.streamers import BaseStreamer

_DRAFTED = 10  # tokens of a prompt lookup, as the library's documentation has it


class _FirstToken(BaseStreamer):
    """Notes when the first tokens are known. The first call brings the prompts."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.first_s = 0.0

    def put(self, value: torch.Tensor) -> None:
        self.num_calls += 1
        if self.num_calls == 2:
            self.first_s = time.perf_counter()

    def end(self) -> None:
        pass


class Worker:
    """One model, which plain and assisted generation share."""

    def __init__(self, setup: dict[str, Any]) -> None:
        """`setup`: folder and threads."""
        torch.set_num_threads(setup["threads"])
        transformers.utils.logging.set_verbosity_error()
        folder = setup["folder"]
        load = transformers.AutoModelForCausalLM.from_pretrained
        self._model: Any = load(folder, dtype=torch.bfloat16).eval()
        self._model.generation_config.eos_token_id = None  # nothing ends an answer early
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)

    def answer(self, job: dict[str, Any]) -> dict[str, Any]:
        """Prompts are padded on the left and go through one call."""
        arrivals, start_s = _FirstToken(), time.perf_counter()
        input_ids, mask = _left_padded(job["prompts"])
        assisted = {"prompt_lookup_num_tokens": _DRAFTED} if job["is_assisted"] else {}
        output = self._model.generate(
            input_ids,
            attention_mask=mask,
            max_new_tokens=job["num_tokens"],
            do_sample=False,
            streamer=arrivals,
            pad_token_id=0,
            **assisted,
        )
        rows = output[:, input_ids.shape[1] :].tolist()
        return {
            "total_s": time.perf_counter() - start_s,
            "answers": [
                {
                    "first_token_s": arrivals.first_s - start_s,
                    "num_tokens": len(row),
                    "text": self._tokenizer.decode(row),
                }
                for row in rows
            ],
        }


def _left_padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [B, longest] and the attention mask that hides the padding."""
    longest = max(map(len, prompts))
    padded = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(padded), torch.tensor(mask)


def main() -> None:
    """Until stdin closes."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not end up among the replies
    worker = Worker(json.loads(sys.stdin.readline()))
    replies.write("{}\n")
    replies.flush()
    for line in sys.stdin:
        replies.write(json.dumps(worker.answer(json.loads(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
