"""The served greedy text is transformers' greedy text, token for token, on held-out prompts."""

from pathlib import Path

import pytest
import torch

from specserve.client import Client
from tests.exactness.workload import prompts
from tests.reliability.scale import is_long

NUM_PROMPTS = 50 if is_long() else 25
NUM_TOKENS = 48


@pytest.fixture(scope="module")
def reference(embedded_target: Path):
    """`generate(prompt_ids) -> token ids` of transformers on the same folder."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(embedded_target, dtype=torch.float32)

    def generate(prompt_ids: list[int]) -> list[int]:
        ids = torch.tensor([prompt_ids])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NUM_TOKENS,
            min_new_tokens=NUM_TOKENS,
            pad_token_id=0,
        )
        return out[0, len(prompt_ids) :].tolist()

    return generate


@pytest.mark.slow
def test_greedy_tokens_equal_those_of_transformers(service: str, embedded_target: Path, reference):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(embedded_target / "tokenizer.json"))
    texts = prompts()
    step = len(texts) // NUM_PROMPTS
    differences = []
    with Client(service) as client:
        for text in texts[::step][:NUM_PROMPTS]:
            prompt_ids = tokenizer.encode(text).ids
            # transformers' min_new_tokens suppresses the same end tokens.
            served = client.generate(
                prompt_ids, temperature=0, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS
            )
            (sample,) = served.samples
            if list(sample.token_ids) != reference(prompt_ids):
                differences.append(text[:40])
    assert differences == []
