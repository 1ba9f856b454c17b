import json
import os

import pytest
import torch
from safetensors.torch import save_file

from specserve.backends.choose import choose_backend
from specserve.errors import Unsupported
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from tests.golden import Session
from tests.specserve.models.checkpoints import (
    LLAMA,
    QWEN3,
    load,
    random_tensors,
    write_checkpoint,
    write_config,
    write_tokenizer,
)

PROMPT = torch.arange(9) * 7 % 64


def logits_of(folder, **options):
    session = Session(load(folder, **options), len(PROMPT))
    return session.logits(session.feed(PROMPT)[0])


def test_a_sharded_checkpoint_equals_the_single_file(tmp_path):
    single = write_checkpoint(tmp_path / "single")
    folder = write_config(tmp_path / "sharded", QWEN3)
    tensors = random_tensors(folder)
    names = sorted(tensors)
    files = {"model-00001-of-00002.safetensors": names[::2]}
    files["model-00002-of-00002.safetensors"] = names[1::2]
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    weight_map = {name: file for file, held in files.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    assert torch.equal(logits_of(folder), logits_of(single))


def test_names_without_the_model_prefix_and_stored_rotary_tables_are_accepted(tmp_path):
    folder = write_checkpoint(tmp_path / "plain", LLAMA)
    expected = logits_of(folder)
    tensors = {name.removeprefix("model."): t for name, t in random_tensors(folder).items()}
    tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, folder / "model.safetensors")

    assert torch.equal(logits_of(folder), expected)


def test_a_tied_model_may_store_its_head_but_no_other(tmp_path):
    folder = write_checkpoint(tmp_path)
    expected = logits_of(folder)
    tensors = random_tensors(folder)
    head = tensors["model.embed_tokens.weight"].clone()
    save_file({**tensors, "lm_head.weight": head}, folder / "model.safetensors")
    assert torch.equal(logits_of(folder), expected)
    head[3, 5] += 1
    save_file({**tensors, "lm_head.weight": head}, folder / "model.safetensors")
    with pytest.raises(Unsupported, match=r"lm_head\.weight is not embed_tokens\.weight"):
        load(folder)


def test_the_folder_name_decides_nothing(tmp_path):
    expected = logits_of(write_checkpoint(tmp_path / "anything", LLAMA))
    assert torch.equal(logits_of(write_checkpoint(tmp_path / "Qwen3-8B", LLAMA)), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_pads_the_vocabulary_has_no_logits(tmp_path, dtype):
    folder = write_checkpoint(tmp_path)
    expected = logits_of(folder, dtype=dtype)
    logits = logits_of(write_tokenizer(folder, 50), dtype=dtype)

    assert torch.equal(logits[:, :50], expected[:, :50])
    assert bool((logits[:, 50:] == -torch.inf).all())


def test_bfloat16_runs_and_stays_near_float32(tmp_path):
    folder = write_checkpoint(tmp_path)
    target = load(folder, dtype=torch.bfloat16)
    session = Session(load(folder), len(PROMPT))
    expected = session.logits(session.feed(PROMPT)[0])
    hidden, _ = target.forward(PROMPT, torch.arange(9), _Causal())
    logits = target.logits(hidden)

    assert logits is not None
    assert logits.dtype == torch.float32
    assert (logits - expected).abs().max() < 0.2


class _Causal:
    """Dense causal attention of one row, for dtypes the paged reference is not tried with."""

    def run(self, layer_index, q, k, v):
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )
        return out.transpose(0, 1)


def test_taps_come_in_the_order_asked(tmp_path):
    target = load(write_checkpoint(tmp_path))
    session = Session(target, len(PROMPT))
    _, (last, embeddings, first) = session.feed(PROMPT, taps=(1, -1, 0))

    assert torch.equal(embeddings, target.embedding[PROMPT])
    fresh = Session(target, len(PROMPT))
    assert torch.equal(fresh.feed(PROMPT, taps=(0,))[1][0], first)
    assert not torch.equal(first, last)


def test_a_missing_tensor_is_named(tmp_path):
    folder = write_checkpoint(tmp_path)
    tensors = random_tensors(folder)
    del tensors["model.layers.1.self_attn.q_norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(Unsupported, match=r"layers\.1\.self_attn\.q_norm\.weight is missing"):
        load(folder)


def test_an_unknown_tensor_is_named(tmp_path):
    folder = write_checkpoint(tmp_path)
    tensors = random_tensors(folder) | {"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(Unsupported, match=r"unknown tensor layers\.0\.self_attn\.q_proj\.bias"):
        load(folder)


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path):
    folder = write_checkpoint(tmp_path)
    tensors = random_tensors(folder) | {"model.norm.weight": torch.zeros(31)}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(Unsupported, match=r"norm\.weight has shape \[31\].*\[32\]"):
        load(folder)


def test_integer_weights_are_refused(tmp_path):
    folder = write_checkpoint(tmp_path)
    tensors = random_tensors(folder)
    tensors["model.norm.weight"] = torch.zeros(32, dtype=torch.int8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(Unsupported, match=r"norm\.weight has dtype I8"):
        load(folder)


def test_pickled_weights_are_refused_saying_so(tmp_path):
    folder = write_config(tmp_path, QWEN3)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(Unsupported, match="pickled"):
        load(folder)


@pytest.mark.parametrize("length", [0, 4, 300, -1])
def test_a_truncated_file_is_one_clear_error(tmp_path, length):
    folder = write_checkpoint(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(Unsupported, match="not a readable safetensors file"):
        load(folder)


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..", 7, "model.bin"]
)
def test_an_index_cannot_reach_outside_its_folder(tmp_path, name):
    secret = write_checkpoint(tmp_path)
    os.rename(secret / "model.safetensors", tmp_path / "secret.safetensors")
    folder = write_config(tmp_path / "model", QWEN3)
    index = {"weight_map": dict.fromkeys(random_tensors(folder), name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Unsupported, match=r"inside the folder|not a \.safetensors file"):
        load(folder)


@pytest.mark.parametrize("content", ["", "{}", '{"weight_map": []}', '{"weight_map": {}}', "[]"])
def test_a_malformed_index_is_one_clear_error(tmp_path, content):
    folder = write_checkpoint(tmp_path)
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(Unsupported, match="index"):
        load(folder)


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "EvilForCausalLM"])
def test_code_in_the_folder_is_never_executed(tmp_path, architecture):
    canary = tmp_path / "executed"
    code = f"open({str(canary)!r}, 'w').close()\nclass Model: ...\n"
    folder = write_checkpoint(tmp_path / "model")
    for module in ("modeling_evil", "configuration_evil", "sitecustomize", "__init__"):
        (folder / f"{module}.py").write_text(code)
    auto_map = {
        "AutoConfig": "configuration_evil.Config",
        "AutoModelForCausalLM": "modeling_evil.Model",
    }
    write_config(folder, QWEN3, architectures=[architecture], auto_map=auto_map)
    if architecture == "EvilForCausalLM":
        with pytest.raises(Unsupported, match="EvilForCausalLM"):
            load(folder)
    else:
        load(folder)
    assert not canary.exists()


def test_too_many_ranks_are_refused_before_anything_is_read(tmp_path):
    folder = write_config(tmp_path, QWEN3)
    with pytest.raises(Unsupported, match="9 target ranks, but num_attention_heads is 8"):
        load_model(
            folder,
            dtype=torch.float32,
            backend=choose_backend(torch.device("cpu")),
            parallel=TensorParallel(0, 9),
            deterministic=True,
        )
