"""Random models saved by transformers load here and give the same logits."""

import pytest
import torch

from specserve.models.config import read_spec
from specserve.models.rope import inverse_frequencies
from tests.golden import Session
from tests.specserve.models.checkpoints import load

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}


def reference(kind: str):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    if kind == "qwen3":
        config = transformers.Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=True)
        model = transformers.Qwen3ForCausalLM(config)
    else:
        rope = {"llama3": LLAMA3_ROPE, "linear": LINEAR_ROPE, "yarn": YARN_ROPE}[kind]
        config = transformers.LlamaConfig(**SHAPE, rope_parameters=rope, tie_word_embeddings=False)
        model = transformers.LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3", "llama3", "linear", "yarn"])
def test_logits_agree_with_transformers(tmp_path, kind):
    model = reference(kind)
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    token_ids = torch.randint(0, 96, (150,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = model(token_ids[None]).logits[0]

    session = Session(load(tmp_path), len(token_ids))
    hidden = torch.cat([session.feed(chunk)[0] for chunk in token_ids.split([120, 1, 29])])
    torch.testing.assert_close(session.logits(hidden), expected, atol=1e-4, rtol=0)
    assert expected.std() > 0.5  # the comparison is not one of noise around zero


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"beta_fast": 8.0, "beta_slow": 2.0},
        {"truncate": False},
        {"attention_factor": 0.7},
        {"mscale": 0.7, "mscale_all_dim": 1.3},
        {"factor": 1.0},
        {"original_max_position_embeddings": 100_000},
    ],
)
def test_yarn_turns_as_in_transformers(tmp_path, changes):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.Qwen3Config(**SHAPE, head_dim=32, rope_parameters=YARN_ROPE | changes)
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(tmp_path)
    spec = read_spec(tmp_path)
    frequencies, factor = ROPE_INIT_FUNCTIONS["yarn"](config)
    torch.testing.assert_close(inverse_frequencies(spec.rope, 32), frequencies)
    assert spec.rope.attention_factor == pytest.approx(factor)
    rope = config.rope_parameters
    stretched = int(rope["factor"] * rope["original_max_position_embeddings"])
    assert spec.max_position_embeddings == max(256, stretched)
