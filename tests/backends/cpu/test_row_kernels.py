"""Products in machine code of ours: right, and the same bits however they are cut."""

import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specserve.backends.cpu import machine_code
from specserve.backends.cpu import row_kernels as module
from specserve.backends.cpu.codegen import int8_code
from specserve.backends.cpu.codegen.row_code import (
    DOTTED_STEP,
    ByteProducts,
    Machine,
    Storage,
    code,
)
from specserve.backends.cpu.machine_code import Team, host_machine, llvm
from specserve.backends.cpu.parts import CompiledLinear, CpuParts
from specserve.backends.cpu.row_kernels import RowKernels, row_kernels

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(host_machine() is None, reason="no compiled products here")
STORAGES = [storage for storage in Storage if row_kernels(storage) is not None]
AS_STORED = [storage for storage in STORAGES if storage is not Storage.INT8]
BY_VECTORS = [storage for storage in AS_STORED if storage is not Storage.DOTTED]
SIZES = [(1, 1), (3, 33), (64, 32), (256, 100), (1031, 64), (1056, 33), (2080, 70)]
WITH_QUADS = Machine(16, 12, True, byte_products=ByteProducts.QUADS)
WITH_PAIRS = Machine(8, 6, True, byte_products=ByteProducts.PAIRS)
needs_dots = pytest.mark.skipif(Storage.DOTTED not in STORAGES, reason="no dot products here")


def test_what_the_processor_has_is_used():
    """Broken code is not: its own tests would be left out with it."""
    machine = host_machine()
    assert machine is not None
    flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    assert machine.has_dots == {"avx512f", "avx512_bf16"}.issubset(flags)
    if "avx512f" in flags:
        bytes_ = ByteProducts.QUADS if "avx512_vnni" in flags else None
    else:
        bytes_ = ByteProducts.PAIRS
    assert machine.byte_products is bytes_
    assert (machine.lanes == 16) == ("avx512f" in flags)
    expected = {Storage.FLOAT32, Storage.BFLOAT16}
    expected |= {Storage.FLOAT16} if machine.has_halves else set()
    expected |= {Storage.DOTTED} if machine.has_dots else set()
    expected |= {Storage.INT8} if machine.byte_products else set()
    assert set(STORAGES) == expected


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ("avx2 fma avx512f avx512vnni", ByteProducts.QUADS),
        ("avx2 fma avx512f", None),
        ("avx2 fma", ByteProducts.PAIRS),
    ],
)
def test_which_products_of_bytes_a_processor_has(features, expected, monkeypatch):
    found = dict.fromkeys(features.split(), True)
    monkeypatch.setattr(machine_code.llvm, "get_host_cpu_features", lambda: found)
    machine = machine_code.host_machine.__wrapped__()
    assert machine is not None
    assert machine.byte_products is expected


def compiled(weight, storage=Storage.FLOAT32):
    kernels = row_kernels(storage)
    assert kernels is not None
    return CompiledLinear(weight, kernels)


def without_avx512(storage):
    """The kernels of a machine with half as wide vectors, which this one has, too."""
    team = Team.of_torch()
    assert team is not None
    return RowKernels(Machine(lanes=8, most_rows=6, has_halves=True), storage, team)


@pytest.mark.parametrize(
    ("storage", "in_size", "out_size"),
    [
        (storage, *size)
        for storage in AS_STORED
        for size in SIZES
        if storage is not Storage.DOTTED or size[0] % DOTTED_STEP == 0
    ],
)
def test_products_are_those_of_the_stored_weight(storage, in_size, out_size):
    torch.manual_seed(0)
    weight, x = torch.randn(out_size, in_size), torch.randn(41, in_size)
    stored = weight.to(storage.dtype)
    product = compiled(weight, storage)
    multiplied = x.bfloat16() if storage is Storage.DOTTED else x
    for rows in (*range(1, 35), 41):
        expected = multiplied[:rows].double() @ stored.double().T
        assert product(x[:rows]).shape == (rows, out_size)
        torch.testing.assert_close(product(x[:rows]).double(), expected, atol=4e-4, rtol=0)


@pytest.mark.parametrize("storage", BY_VECTORS)
def test_a_weight_that_16_bits_hold_gives_the_bits_of_float32(storage):
    weight = (torch.randn(96, 200) * 64).round() / 64
    assert torch.equal(weight[:, :50], weight[:, :50].half().float())
    weight = weight.to(storage.dtype).float()
    x = torch.randn(20, 200)
    assert torch.equal(compiled(weight, storage)(x), compiled(weight)(x))


@pytest.mark.parametrize("storage", BY_VECTORS)
def test_bits_do_not_depend_on_the_width_of_vectors(storage):
    weight, x = torch.randn(70, 300), torch.randn(31, 300)
    narrow = CompiledLinear(weight, without_avx512(storage))
    expected = compiled(weight, storage)(x)
    for rows in (1, 5, 6, 7, 13, 31):
        assert torch.equal(narrow(x[:rows]), expected[:rows])


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(
    "num_threads", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 5))]
)
@pytest.mark.parametrize(("num_rows", "in_size"), [(9, 128), (25, 320), (40, 1088)])
def test_bits_do_not_depend_on_threads_or_shards(num_threads, storage, num_rows, in_size):
    weight, x = torch.randn(4 * 56, in_size), torch.randn(num_rows, in_size)
    expected = compiled(weight, storage)(x)
    torch.set_num_threads(num_threads)
    assert torch.equal(compiled(weight, storage)(x), expected)
    for num_shards in (2, 4):
        shards = [compiled(part, storage)(x) for part in weight.chunk(num_shards)]
        assert torch.equal(torch.cat(shards, 1), expected)


@pytest.mark.parametrize("storage", STORAGES)
def test_bits_do_not_depend_on_the_rows_beside(storage):
    weight, x = torch.randn(70, 2112), torch.randn(300, 2112)
    product = compiled(weight, storage)
    alone = torch.cat([product(row[None]) for row in x])
    for rows in (2, 12, 13, *range(16, 34), 127, 128, 129, 257, 300):
        assert torch.equal(product(x[:rows]), alone[:rows])
        assert torch.equal(product(x[-rows:]), alone[-rows:])


@pytest.mark.parametrize(
    ("text", "cpu", "instruction"),
    [
        (code(Machine(16, 12, True, has_dots=True), Storage.DOTTED), "znver4", "vdpbf16ps"),
        (int8_code.code(WITH_QUADS), "icelake-server", "vpdpbusd"),
        (int8_code.code(WITH_PAIRS), "haswell", "vpmaddubsw"),
        (code(Machine(16, 12, True), Storage.BFLOAT16), "skylake-avx512", "vfmadd"),
        (code(Machine(8, 6, True), Storage.FLOAT16), "haswell", "vcvtph2ps"),
    ],
    ids=["dots", "bytes", "pairs of bytes", "avx512", "avx2"],
)
def test_code_for_other_machines_is_what_llvm_takes(text, cpu, instruction):
    """This one may have none of their units, but makes what they would run."""
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
        cpu=cpu, opt=3
    )
    assert instruction in machine.emit_assembly(module)


@pytest.mark.slow
@needs_dots
def test_inputs_are_rounded_for_who_asks_and_for_nobody_else(anew, monkeypatch):
    """A target's never."""
    brain, half = torch.randn(40, 64).bfloat16().float(), torch.randn(40, 64).half().float()
    assert storage_of(brain) is Storage.BFLOAT16
    assert storage_of(brain, input_bits=16) is Storage.DOTTED
    assert storage_of(half, input_bits=16) is Storage.FLOAT16
    assert storage_of(brain[:, :40], input_bits=16) is Storage.BFLOAT16
    assert storage_of(brain, half_weights=False, input_bits=16) is Storage.FLOAT32
    machine = host_machine()
    assert machine is not None
    row_kernels.cache_clear()
    monkeypatch.setattr(module, "host_machine", lambda: replace(machine, has_dots=False))
    assert storage_of(brain, input_bits=16) is Storage.BFLOAT16


def storage_of(weight, *, half_weights=True, **options):
    kernels = CpuParts(deterministic=True, half_weights=half_weights, **options)
    product = kernels.linear([weight])
    assert isinstance(product, CompiledLinear)
    return product.kernels.storage


def test_memory_of_weights_is_theirs_alone():
    """They lie side by side in large pages."""
    weights = [torch.randn(out_size, 33) for out_size in (1, 31, 64, 65)]
    products = [compiled(weight) for weight in weights]
    for place, weight in enumerate(weights):
        torch.testing.assert_close(products[place](torch.eye(33)), weight.T.contiguous())


@pytest.mark.parametrize("storage", STORAGES)
def test_products_keep_no_memory(storage):
    """Some copy their inputs."""
    product, x = compiled(torch.randn(33, 1024), storage), torch.randn(256, 1024)
    for _ in range(20):
        product(x)
    before = resident_bytes()
    for _ in range(300):
        product(x)
    assert resident_bytes() - before < 40e6  # of 157e6, were copies of 16 bits left behind


@pytest.mark.slow
@pytest.mark.parametrize("storage", [Storage.DOTTED, Storage.INT8])
def test_without_memory_for_inputs_results_are_no_numbers(storage):
    if storage not in STORAGES:
        pytest.skip("no such products here")
    found = run_child(_WITHOUT_MEMORY, storage.name)
    assert found.stdout.split() == ["nan", "nan"], found.stderr


_WITHOUT_MEMORY = """
import resource, sys
import torch
from specserve.backends.cpu.parts import CompiledLinear
from specserve.backends.cpu.codegen.row_code import Storage
from specserve.backends.cpu.row_kernels import row_kernels
torch.set_num_threads(1)
product = CompiledLinear(torch.ones(32, 4096), row_kernels(Storage[sys.argv[1]]))
x = torch.ones(20000, 4096)
product(x[:1])
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (40 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
found = product(x)
print(found[0, 0].item(), found[-1, -1].item())
"""


def resident_bytes():
    """Now: the most there ever was would hide what is taken since."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def run_child(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )


def test_inputs_of_any_layout():
    weight, x = torch.randn(40, 24), torch.randn(5, 3, 24)
    product = compiled(weight)
    expected = torch.stack([product(part) for part in x])
    assert torch.equal(product(x), expected)
    turned = x.transpose(0, 1)
    assert torch.equal(product(turned), expected.transpose(0, 1))
    wide = torch.randn(24, 96)
    for view in (wide[:, :24], wide[:, ::4], wide[:, :9].T):
        assert not view.is_contiguous()
        assert torch.equal(product(view), product(view.clone()))
    assert product(torch.empty(0, 24)).shape == (0, 40)


@pytest.mark.parametrize("storage", STORAGES)
def test_what_is_no_number_stays_in_its_row(storage):
    product, x = compiled(torch.randn(33, 64), storage), torch.randn(25, 64)
    expected = product(x)
    x[3, 2], x[7, 0] = float("nan"), float("inf")
    found = product(x)
    assert found[3].isnan().all()
    assert not found[7].isfinite().any()
    others = [row for row in range(25) if row not in (3, 7)]
    assert torch.equal(found[others], expected[others])


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (torch.zeros(4, 24).bfloat16(), "torch.bfloat16"),
        (torch.zeros(4, 24).double(), "torch.float64"),
        (torch.zeros(4, 25), r"x is \[4, 25\] .* takes \[N, 24\]"),
        (torch.zeros(4, 23), r"x is \[4, 23\]"),
        (torch.zeros(4, 24, device="meta"), "on meta"),
        (torch.zeros(4, 24, requires_grad=True), "no gradients"),
    ],
)
def test_other_inputs_are_refused(x, error):
    with pytest.raises(ValueError, match=error):
        compiled(torch.zeros(40, 24))(x)


def test_a_weight_without_elements_is_refused():
    with pytest.raises(ValueError, match=r"a weight of \[0, 24\] has no products"):
        compiled(torch.zeros(0, 24))


def halves_of(weight, **options):
    kernels = CpuParts(deterministic=False, half_weights=True, **options)
    product = kernels.linear(list(weight.split(20)))
    assert isinstance(product, CompiledLinear)
    assert kernels.any_halved == (product.weight.dtype is not torch.float32)
    x = torch.randn(3, weight.shape[1])
    if options:
        assert torch.equal(product(x), compiled(weight)(x))
    return product.weight.dtype


def test_16_bits_are_those_that_lose_nothing_if_there_are_such():
    weight = torch.randn(40, 16)
    brain, half = weight.bfloat16().float(), weight.half().float()
    assert halves_of(brain) is torch.bfloat16
    assert halves_of(half) is torch.float16
    assert halves_of(weight) is torch.float16
    assert halves_of(weight * 1e6) is torch.float32
    assert halves_of((weight * 1e6).bfloat16().float()) is torch.bfloat16


def test_what_may_not_be_rounded_is_not():
    weight = torch.randn(40, 16)
    brain, half = weight.bfloat16().float(), weight.half().float()
    assert halves_of(brain, may_round=False) is torch.bfloat16
    assert halves_of(half, may_round=False) is torch.float16
    assert halves_of(weight, may_round=False) is torch.float32
    # Stacked, of which each part would be held by another kind of 16 bits.
    mixed = torch.cat([brain[:20] * 1e-6, half[20:]])
    assert halves_of(mixed, may_round=False) is torch.float32
    one = brain.clone()
    one[39, 15] = 1 + 2**-12
    assert halves_of(one, may_round=False) is torch.float32
