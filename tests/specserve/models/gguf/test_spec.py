"""What a GGUF file says of its architecture, beside what config.json says of the same model."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from specserve.errors import Unsupported
from specserve.models.config import read_spec
from specserve.models.rope import inverse_frequencies
from tests.specserve.models.checkpoints import LLAMA, QWEN3, write_checkpoint
from tests.specserve.models.gguf.files import write_gguf

PLAIN_LLAMA = {**LLAMA, "rope_scaling": None}


def written(tmp_path, config=PLAIN_LLAMA, *, tensors=None, **metadata):
    """The folder, and the file made of it; dots are underscores of `metadata`'s keys."""
    folder = write_checkpoint(tmp_path / "folder", config)
    keys = {name.replace("__", "."): value for name, value in metadata.items()}
    return folder, write_gguf(tmp_path / "m.gguf", folder, metadata=keys, tensors=tensors)


@pytest.mark.parametrize("config", [PLAIN_LLAMA, QWEN3])
def test_it_is_what_the_config_says(tmp_path, config):
    folder, file = written(tmp_path, config)
    expected = dataclasses.replace(read_spec(folder), rms_norm_eps=float(np.float32(1e-6)))
    assert read_spec(file) == expected


def test_linear_and_yarn_scaling(tmp_path):
    scaling = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    _, file = written(tmp_path, **scaling)
    assert (read_spec(file).rope.kind, read_spec(file).rope.factor) == ("linear", 4.0)
    _, file = written(tmp_path, llama__rope__scaling__type="yarn")
    assert read_spec(file).rope.kind == "default"  # without a factor nothing is stretched
    yarn = {
        "llama__rope__scaling__type": "yarn",
        "llama__rope__scaling__factor": 4.0,
        "llama__rope__scaling__original_context_length": 32,
    }
    _, file = written(tmp_path, **yarn)
    theirs = {**PLAIN_LLAMA, "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
    }}  # fmt: skip
    folder = write_checkpoint(tmp_path / "yarn", theirs)
    ours, expected = read_spec(file).rope, read_spec(folder).rope
    assert math.isclose(ours.attention_factor, expected.attention_factor, rel_tol=1e-6)
    assert torch.equal(inverse_frequencies(ours, 8), inverse_frequencies(expected, 8))


def test_llama3_scaling_is_stored_as_factors_of_each_pair(tmp_path):
    scaled = read_spec(write_checkpoint(tmp_path / "scaled", LLAMA)).rope
    plain = read_spec(write_checkpoint(tmp_path / "plain", PLAIN_LLAMA)).rope
    wanted = inverse_frequencies(scaled, 8)
    factors = (inverse_frequencies(plain, 8) / wanted).numpy()
    _, file = written(tmp_path, tensors={"rope_freqs.weight": factors})
    assert torch.allclose(inverse_frequencies(read_spec(file).rope, 8), wanted, rtol=1e-6)


def test_every_end_token_counts(tmp_path):
    tokens = ["a", "</s>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "b"]
    names = {
        "tokenizer__ggml__eos_token_id": 2,
        "tokenizer__ggml__eot_token_id": 5,
        "tokenizer__ggml__eom_token_id": 0,
        "tokenizer__ggml__tokens": tokens,
        # "</s>" is an ordinary token here, whatever it is called
        "tokenizer__ggml__token_type": [1, 1, 3, 3, 3, 1],
    }
    _, file = written(tmp_path, **names)
    assert set(read_spec(file).eos_token_ids) == {0, 2, 5, 3, 4}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"general.architecture": "gemma3"}, "'gemma3' is not one of llama, qwen3"),
        ({"llama.expert_count": 8}, "llama.expert_count: 8 is not supported"),
        ({"llama.attention.sliding_window": 64}, "llama.attention.sliding_window: 64"),
        ({"llama.logit_scale": 2.0}, "llama.logit_scale: 2.0 is not supported"),
        ({"split.count": 3}, "is one of 3 files; join them"),
        ({"llama.block_count": None}, "metadata llama.block_count is missing"),
        ({"llama.block_count": 0}, "llama.block_count: 0 is less than 1"),
        ({"llama.block_count": "two"}, "llama.block_count: 'two' is no int"),
        ({"llama.embedding_length": 63}, "llama.embedding_length: 63, but"),
        ({"llama.vocab_size": 63}, "llama.vocab_size: 63, but"),
        ({"llama.attention.head_count_kv": 3}, "head_count_kv: 3 of 8 heads"),
        ({"llama.attention.value_length": 4}, "value_length: 4; the head size is 8"),
        ({"llama.rope.dimension_count": 4}, "rope.dimension_count: 4; the head size is 8"),
        ({"llama.rope.freq_base": 0.0}, "freq_base: 0.0 is not within 1 to 1e"),
        ({"llama.rope.freq_base": math.nan}, "rope.freq_base: nan is no finite number"),
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, "rms_epsilon: -1.0 is not within 1e-15"),
        ({"llama.attention.layer_norm_rms_epsilon": math.inf}, "inf is no finite number"),
        (
            {"llama.attention.layer_norm_rms_epsilon": 1e30},
            "rms_epsilon: .* is not within 1e-15 to",
        ),
        ({"llama.attention.layer_norm_rms_epsilon": 1e-38}, "rms_epsilon: .* is not within"),
        ({"llama.rope.freq_base": 1e-30}, "rope.freq_base: .* is not within 1 to"),
        ({"llama.rope.freq_base": 1e38}, "rope.freq_base: .* is not within 1 to"),
        ({"llama.rope.scaling.factor": 1e30}, "rope.scaling.factor: .* is not within 0 to"),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1e-30},
            "rope.scaling.factor: .* is neither 0 nor within 0.001 to 10000",
        ),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 2.0,
                "llama.rope.scaling.attn_factor": 1e30,
            },
            "attn_factor: .* is not within",
        ),
        ({"llama.feed_forward_length": 10**9}, "feed_forward_length: 1000000000; the limit"),
        ({"llama.attention.head_count": 10**9}, "head_count: 1000000000; the limit"),
        ({"llama.attention.key_length": 10**9}, "key_length: 1000000000; the limit"),
        ({"llama.block_count": 2**32 - 1}, "llama.block_count: 4294967295; the limit is 4096"),
        ({"llama.attention.sliding_window": [0, 8]}, r"sliding_window: \[0, 8\] is not"),
        ({"llama.rope.scaling.type": "longrope"}, "'longrope' is not one of none, linear"),
        (
            {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0},
            "'longrope' is not one of none, linear, yarn",
        ),
        ({"tokenizer.ggml.eos_token_id": 64}, "end token 64 is outside the vocabulary"),
    ],
)
def test_what_is_not_implemented_is_refused_by_its_key(tmp_path, change, problem):
    folder = write_checkpoint(tmp_path / "folder", PLAIN_LLAMA)
    metadata = {
        name.replace("llama.", "gemma3.") if "gemma3" in change.values() else name: value
        for name, value in change.items()
    }
    file = write_gguf(tmp_path / "m.gguf", folder, metadata=metadata)
    with pytest.raises(Unsupported, match=problem) as error:
        read_spec(file)
    assert str(file) in str(error.value)


def test_yarn_has_an_attention_factor_of_its_own(tmp_path):
    yarn = {"llama__rope__scaling__type": "yarn", "llama__rope__scaling__factor": 4.0}
    _, usual = written(tmp_path, **yarn)
    factor = read_spec(usual).rope.attention_factor
    _, own = written(tmp_path, **yarn, llama__rope__scaling__attn_factor=0.5)
    assert math.isclose(read_spec(own).rope.attention_factor, factor / 2)


def test_matrices_of_two_precisions_are_computed_with_in_the_larger(tmp_path):
    half = {"blk.9.ffn_up.weight": np.zeros((4, 4), np.float16)}
    _, file = written(tmp_path, tensors=half)
    assert read_spec(file).dtype == "float32"


def test_a_key_of_every_layer_is_read_where_layers_agree(tmp_path):
    _, file = written(tmp_path, llama__attention__head_count_kv=[4, 4])
    assert read_spec(file).num_kv_heads == 4
    _, file = written(tmp_path, llama__attention__sliding_window=[0, 0])
    assert read_spec(file).num_real_layers == 2
    _, file = written(tmp_path, llama__feed_forward_length=[64, 32])
    with pytest.raises(Unsupported, match="feed_forward_length"):
        read_spec(file)
