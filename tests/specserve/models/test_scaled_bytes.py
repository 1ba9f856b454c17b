"""Matrices stored as bytes with scales: how near they come, and which files are refused."""

import pytest
import torch
from safetensors.torch import save_file

from specserve.errors import Unsupported
from specserve.models.checkpoint import Checkpoint
from specserve.models.scaled_bytes import GROUP, pack, packed, unpack, unpacked


def stored(folder, **tensors):
    save_file(tensors, folder / "model.safetensors")
    return folder


# Below .008 a group's scale is none of float16's normal numbers, which are rounded to 2**-24.
@pytest.mark.parametrize("size", [1.0, 4e-3, 2e-4])
@pytest.mark.parametrize("width", [1, GROUP - 1, GROUP, 3 * GROUP, 3 * GROUP + 5])
def test_an_element_is_off_by_half_a_step_of_its_own_group_at_most(width, size):
    weight = torch.randn(7, width) * size
    weight[2, 0] *= 1000  # the others of its row lose nothing, but those of its group
    found = unpack(*pack(weight))
    assert found.shape == weight.shape
    for start in range(0, width, GROUP):
        part, near = weight[:, start : start + GROUP], found[:, start : start + GROUP]
        step = part.abs().amax(1) / 127
        assert ((near - part).abs() <= 0.51 * step[:, None] + 127 * 2.0**-25).all()


def test_what_is_read_is_packed_without_a_loss():
    once = unpack(*pack(torch.randn(5, 100)))
    torch.testing.assert_close(unpack(*pack(once)), once, rtol=1e-3, atol=0)


def test_zeros_stay_zeros():
    assert not unpack(*pack(torch.zeros(3, 70))).any()


def test_only_matrices_of_numbers_are_packed():
    weights = {
        "a": torch.randn(3, 70), "norm": torch.randn(70), "table": torch.arange(6).view(2, 3),
    }  # fmt: skip
    tensors = packed(weights)
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {
        "a": torch.int8, "a_scale": torch.float16, "norm": torch.float32, "table": torch.int64,
    }  # fmt: skip
    assert unpacked(tensors).keys() == weights.keys()


def test_a_checkpoint_reads_them_as_numbers(tmp_path):
    weight = torch.randn(6, 130)
    with Checkpoint(stored(tmp_path, **packed({"model.a.weight": weight}))) as checkpoint:
        assert checkpoint.names() == {"a.weight"}
        checkpoint.check({"a.weight": (6, 130)})
        whole = checkpoint.read("a.weight")
        assert whole.dtype == torch.float32
        torch.testing.assert_close(whole, weight, atol=0.02, rtol=0)
        part = (slice(2, 4), slice(60, 70))
        assert torch.equal(checkpoint.read("a.weight", part), whole[part])
        with pytest.raises(Unsupported, match=r"a.weight has shape \[6, 130\]"):
            checkpoint.check({"a.weight": (6, 131)})


BYTES, SCALES = torch.zeros(6, 130, dtype=torch.int8), torch.ones(6, 3, dtype=torch.float16)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"w": BYTES, "w_scale": SCALES.float()}, "I8 with scales of F32"),
        ({"w": BYTES.float(), "w_scale": SCALES}, "F32 with scales of F16"),
        ({"w": BYTES, "w_scale": SCALES[:, :2]}, r"scales of shape \[6, 2\] for \[6, 130\]"),
        ({"w": BYTES, "w_scale": SCALES[:5]}, r"scales of shape \[5, 3\] for \[6, 130\]"),
        ({"w": BYTES[0], "w_scale": SCALES[0]}, r"scales of shape \[3\] for \[130\]"),
    ],
)
def test_what_does_not_belong_together_is_refused_by_name(tensors, problem, tmp_path):
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with pytest.raises(Unsupported, match=f"tensor w: {problem}"):
        Checkpoint(stored(tmp_path, **tensors))


def test_scales_have_no_scales(tmp_path):
    tensors = {"w": BYTES, "w_scale": SCALES, "w_scale_scale": SCALES[:, :1].contiguous()}
    with pytest.raises(Unsupported, match="tensor w_scale: scales that have scales"):
        Checkpoint(stored(tmp_path, **tensors))


def test_bytes_without_scales_are_no_weights(tmp_path):
    problem = "tensor w has dtype I8"
    with (
        Checkpoint(stored(tmp_path, w=BYTES)) as checkpoint,
        pytest.raises(Unsupported, match=problem),
    ):
        checkpoint.check({"w": (6, 130)})
