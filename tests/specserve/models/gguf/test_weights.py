"""Weights of GGUF files are those of the folder they were made of, whatever they are stored in."""

import gguf
import numpy as np
import pytest
import torch

from specserve.errors import Unsupported
from specserve.models.checkpoint import Checkpoint
from specserve.models.gguf.container import GgufFile
from specserve.models.gguf.weights import QUANTISED, GgufSlice
from tests.specserve.models.checkpoints import LLAMA, QWEN3, load, write_checkpoint
from tests.specserve.models.gguf.files import Kind, write_gguf

WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 8}  # whole blocks of 32
CAN_QUANTISE = [Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0]


@pytest.mark.parametrize("config", [LLAMA, QWEN3])
def test_a_file_of_whole_numbers_is_the_folder_it_was_made_of(tmp_path, config):
    folder = write_checkpoint(tmp_path / "folder", config, rope_scaling=None)
    file = write_gguf(tmp_path / "model.gguf", folder)
    with Checkpoint(folder) as ours, Checkpoint(file) as theirs:
        assert set(ours.names()) == set(theirs.names())
        for name in ours.names():
            assert torch.equal(ours.read(name), theirs.read(name)), name


@pytest.mark.parametrize("config", [LLAMA, QWEN3])
def test_parts_are_read_as_of_a_folder(tmp_path, config):
    folder = write_checkpoint(tmp_path / "folder", config, rope_scaling=None)
    file = write_gguf(tmp_path / "model.gguf", folder)
    with Checkpoint(folder) as ours, Checkpoint(file) as theirs:
        for kind in ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"):
            name = f"layers.1.{kind}.weight"
            rows, columns = ours.read(name).shape
            for part in (
                (slice(rows // 4, rows // 2), slice(None)),
                (slice(None), slice(columns // 4, columns // 2)),
            ):
                assert torch.equal(ours.read(name, part), theirs.read(name, part)), name


@pytest.mark.parametrize("kind", CAN_QUANTISE)
def test_what_is_quantised_is_near_and_serves(tmp_path, kind):
    folder = write_checkpoint(tmp_path / "folder", LLAMA, rope_scaling=None, **WIDE)
    file = write_gguf(tmp_path / "model.gguf", folder, kind=kind)
    with Checkpoint(folder) as ours, Checkpoint(file) as theirs:
        whole = ours.read("layers.0.mlp.up_proj.weight")
        stored = theirs.read("layers.0.mlp.up_proj.weight").float()
        assert 0 < (stored - whole).abs().max() < 0.2 * whole.abs().max()
        part = (slice(3, 9), slice(None))
        assert torch.equal(theirs.read("layers.0.mlp.up_proj.weight", part).float(), stored[3:9])
    spec = load(file).config
    assert spec.quantised == (() if kind is Kind.BF16 else (kind.name,))
    assert spec.dtype == ("bfloat16" if kind is Kind.BF16 else "float16")


@pytest.mark.parametrize("kind", sorted(QUANTISED))
def test_every_format_of_the_gguf_package_is_dequantised(tmp_path, kind):
    """Random bytes, as its own reader and its own arithmetic have them."""
    block_len, block_bytes = gguf.GGML_QUANT_SIZES[Kind[kind]]
    generator = np.random.default_rng(5)
    stored = generator.integers(0, 256, (6, 2 * block_bytes), dtype=np.uint8)
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_tensor("any", stored, raw_dtype=Kind[kind])
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GgufFile(path) as file:
        tensor = file.tensors["any"]
        assert (tensor.kind, tensor.shape) == (kind, (6, 2 * block_len))
        assert np.array_equal(file.bytes_of(tensor), stored)
    (theirs,) = (t for t in gguf.GGUFReader(path).tensors if t.name == "any")
    with np.errstate(all="ignore"):  # random scales are of any size
        expected = gguf.quants.dequantize(theirs.data, theirs.tensor_type)
        with GgufFile(path) as file:
            rows = GgufSlice(file, file.tensors["any"], 0)[(slice(2, 5), slice(None))].numpy()
    assert np.array_equal(rows, expected[2:5], equal_nan=True)


def test_formats_that_nobody_dequantises_are_refused_by_name(tmp_path):
    folder = write_checkpoint(tmp_path / "folder", QWEN3)
    file = write_gguf(tmp_path / "model.gguf", folder, tensors={})
    content = file.read_bytes()
    name = b"blk.0.ffn_up.weight"
    place = content.index(name) + len(name) + 4 + 16
    assert content[place : place + 4] == bytes([0, 0, 0, 0])  # F32
    file.write_bytes(content[:place] + bytes([26, 0, 0, 0]) + content[place + 4 :])  # I32
    with pytest.raises(Unsupported, match=r"mlp.up_proj.weight has dtype I32"):
        load(file)


def test_tensors_that_the_architecture_has_not_are_refused(tmp_path):
    folder = write_checkpoint(tmp_path / "folder", LLAMA, rope_scaling=None)
    bias = {"blk.0.attn_q.bias": np.zeros(64, np.float32)}
    file = write_gguf(tmp_path / "model.gguf", folder, tensors=bias)
    with pytest.raises(Unsupported, match=r"unknown tensor layers.0.self_attn.q_proj.bias"):
        load(file)
