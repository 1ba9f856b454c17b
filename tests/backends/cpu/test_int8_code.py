"""Products of 8 bits: what is rounded, by how much, and who has them."""

import pytest
import torch

from specserve.backends.cpu.backend import CpuBackend
from specserve.backends.cpu.codegen import int8_code
from specserve.backends.cpu.codegen.row_code import ByteProducts, Machine, Storage
from specserve.backends.cpu.machine_code import Team, host_machine
from specserve.backends.cpu.parts import CompiledLinear, CpuParts
from specserve.backends.cpu.row_kernels import RowKernels, row_kernels

CPU = torch.device("cpu")
needs_bytes = pytest.mark.skipif(row_kernels(Storage.INT8) is None, reason="no products of bytes")


@pytest.fixture(scope="module", params=["of this machine", "of AVX2"])
def kernels(request):
    """Every machine that has compiled products has AVX2."""
    machine, team = host_machine(), Team.of_torch()
    if machine is None or team is None:
        pytest.skip("no compiled products")
    if request.param == "of AVX2":
        if machine.byte_products is ByteProducts.PAIRS:
            pytest.skip("which is this machine")
        machine = Machine(8, 6, machine.has_halves, byte_products=ByteProducts.PAIRS)
    elif machine.byte_products is None:
        pytest.skip("no products of bytes")
    return RowKernels(machine, Storage.INT8, team)


@pytest.mark.parametrize(("in_size", "out_size"), [(64, 1), (64, 33), (256, 100), (4096, 70)])
def test_products_are_those_of_what_is_kept(kernels, in_size, out_size):
    torch.manual_seed(0)
    weight, x = torch.randn(out_size, in_size), 50 * torch.randn(29, in_size)
    expected = kernels.multiplied(x).double() @ int8_code.kept(weight).double().T
    product = CompiledLinear(weight, kernels)
    for rows in (*range(1, 26), 29):
        found = product(x[:rows])
        assert found.shape == (rows, out_size)
        torch.testing.assert_close(found.double(), expected[:rows], atol=2e-2, rtol=1e-5)


@pytest.mark.parametrize("weight_sign", [1.0, -1.0])
@pytest.mark.parametrize("input_sign", [1.0, -1.0])
def test_the_largest_integers_there_are_do_not_overflow(kernels, weight_sign, input_sign):
    """A weight of 127 is kept as 255, the most that a byte can be."""
    product = CompiledLinear(torch.full((32, 8192), 3.0 * weight_sign), kernels)
    expected = torch.full((2, 32), weight_sign * input_sign * 15 * 8192)
    torch.testing.assert_close(product(torch.full((2, 8192), 5.0 * input_sign)), expected)


def test_inputs_are_as_large_as_sixteen_bits_allow():
    """Two products by a weight of up to 255, and no more than that."""
    most, largest = ByteProducts.PAIRS.most_input, torch.iinfo(torch.int16).max
    assert 2 * most * 255 <= largest < 2 * (most + 1) * 255


@pytest.mark.parametrize(("most", "told"), [(127, ()), (64, (64,))], ids=["weights", "inputs"])
def test_what_is_kept_is_off_by_half_a_step_of_its_group(most, told):
    """So a large input costs the precision of its neighbours alone."""
    x = torch.randn(3, 256)
    x[0, 70] = 1e4
    off = (int8_code.kept(x, *told) - x).abs().view(3, 4, 64).amax(-1)
    steps = x.abs().view(3, 4, 64).amax(-1) / most
    assert (off <= 0.5001 * steps).all()
    assert off[0, 0] < 0.04
    assert off[0, 1] > 0.5


@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-38, 1e-31, 1e-29, 1e30])
def test_inputs_of_any_size_are_numbers(kernels, size):
    found = CompiledLinear(torch.ones(32, 128), kernels)(torch.full((2, 128), size))
    atol = 130e-30 if size < 1e-30 else 0  # which counts as nothing
    torch.testing.assert_close(found, torch.full((2, 32), 128 * size), atol=atol, rtol=1e-5)


@pytest.mark.parametrize("size", [1e-29, 1e29])
def test_large_weights_and_small_inputs_are_numbers_and_the_other_way_round(kernels, size):
    found = CompiledLinear(torch.full((32, 64), 100 / size), kernels)(torch.full((1, 64), size))
    torch.testing.assert_close(found, torch.full((1, 32), 6400.0), atol=0, rtol=1e-5)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 63, 64, 127])
def test_what_is_no_number_leads_to_none(kernels, wrong, place):
    x = torch.randn(5, 128)
    x[2, place] = wrong
    found = CompiledLinear(torch.randn(32, 128), kernels)(x)
    assert found[2].isnan().all()
    assert found[[0, 1, 3, 4]].isfinite().all()


@needs_bytes
def test_only_who_says_so_has_them():
    """Drafters; a target never, whatever its dtype."""
    weight = torch.randn(40, 128).bfloat16().float()
    assert storage_of(drafters(), weight) is Storage.INT8
    assert storage_of(drafters(), torch.randn(40, 128)) is Storage.INT8
    assert storage_of(drafters(), weight[:, :96]) is not Storage.INT8
    assert drafters().quantizes(weight)
    assert not drafters().quantizes(weight[:, :96])
    assert not drafters(half_weights=False).quantizes(weight)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        target = CpuBackend(CPU).target_parts(dtype, deterministic=False, is_stored_in_16_bits=True)
        assert storage_of(target, weight) is not Storage.INT8
        assert not target.quantizes(weight)


def drafters(*, half_weights=True):
    return CpuParts(deterministic=False, half_weights=half_weights, input_bits=8)


def storage_of(kernels, weight):
    product = kernels.linear([weight])
    assert isinstance(product, CompiledLinear)
    return product.kernels.storage
