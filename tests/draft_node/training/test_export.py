import json
import math

import pytest
import torch
from safetensors.torch import load_file

from draft_node.training import evaluate, export, report, tokenizer
from draft_node.training.decoder import Decoder, DecoderConfig, causal_attention

SHAPE = {"vocab_size": 304, "hidden_size": 64, "head_dim": 16, "num_hidden_layers": 2}


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    shape = DecoderConfig(**SHAPE)
    model = Decoder(shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (parameter.ndim == 1))
    trained = tokenizer.train(
        ["some text to train on, and more of it"] * 20 + ["abcdefgh" * 9], 280
    )
    tokenizer.save(trained, tmp_path / "tokenizer")
    export.write_model(model.state_dict(), shape, tmp_path / "tokenizer", tmp_path / "out")
    export.write_checksums(tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.slow
def test_transformers_loads_the_folder_and_agrees(folder) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours = report.load_decoder(folder)
    ids = torch.randint(
        0, SHAPE["vocab_size"], (2, 200), generator=torch.Generator().manual_seed(1)
    )
    with torch.inference_mode():
        assert type(theirs).__name__ == "Qwen3ForCausalLM"
        torch.testing.assert_close(theirs(ids).logits, ours(ids), atol=1e-4, rtol=1e-5)
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    assert (loaded.eos_token, loaded.pad_token) == ("<|endoftext|>", "<|pad|>")
    text = loaded.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_weights_are_stored_as_bfloat16_without_the_tied_head(folder) -> None:
    weights = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert "lm_head.weight" not in weights


def test_checksums_cover_every_file(folder) -> None:
    listed = dict(
        reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines()
    )
    files = {path.name for path in folder.iterdir()} - {"SHA256SUMS"}
    assert set(listed) == files
    assert all(export.sha256(folder / name) == value for name, value in listed.items())


def test_generation_stops_at_both_end_tokens(folder) -> None:
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [0, 2]


@pytest.mark.slow
def test_batched_greedy_equals_one_by_one(folder) -> None:
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12, 13]]
    alone = [evaluate.greedy(folder, [prompt], 4)[0] for prompt in prompts]
    assert evaluate.greedy(folder, prompts, 4) == alone
    model = report.load_decoder(folder)
    with torch.no_grad():
        assert model(torch.tensor([prompts[1]]))[0, -1].argmax() == alone[1][0]


@pytest.mark.parametrize("length", [5, 128, 300])
def test_blockwise_attention_equals_the_fused_kernel(length: int) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(2, 4, length, 16, generator=generator) for _ in range(3))
    blockwise = causal_attention(queries, keys, values)
    with torch.no_grad():
        fused = causal_attention(queries, keys, values)
    torch.testing.assert_close(blockwise, fused, atol=1e-5, rtol=1e-5)


def test_loss_of_uniform_logits_is_log_of_the_vocabulary(tiny) -> None:
    model = Decoder(tiny)
    with torch.no_grad():
        model.model.embed_tokens.weight.zero_()
    stream = torch.randint(0, tiny.vocab_size, (200,)).numpy()
    assert evaluate.stream_loss(model, stream, 16) == pytest.approx(math.log(tiny.vocab_size))


def test_bits_per_byte_and_distinct_ratio() -> None:
    assert evaluate.bits_per_byte(math.log(2), num_tokens=3, num_bytes=12) == 0.25
    assert evaluate.distinct_ratio([1, 2, 3, 4, 5, 6]) == 1.0
    assert evaluate.distinct_ratio([1] * 8) == 0.2
