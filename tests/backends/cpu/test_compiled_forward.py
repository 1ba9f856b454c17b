"""Compiled forwards: torch's numbers, and the same bits however tokens come."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from specserve.backends.cpu import forward as attention_module
from specserve.backends.cpu import machine_code
from specserve.backends.cpu.forward import CompiledForward
from specserve.backends.torch.forward import TorchForward
from specserve.models.attention import AttentionBatch
from tests.backends.chosen import can_compile
from tests.specserve.models.checkpoints import LLAMA, QWEN3, load, write_checkpoint

# Not where the trial says that they are wrong: that is what this is to tell.
pytestmark = pytest.mark.skipif(not can_compile(), reason="no numba, or no vectors that we know")
TAPS = (1, -1, 0)
HALF = torch.bfloat16
SLOW = pytest.mark.slow
KEPT = [torch.float32, pytest.param(HALF, marks=SLOW)]
# Head sizes beside the vectors', one query head a key head and several, hidden sizes beside both.
SHAPES = {
    "qwen3": (QWEN3, {}),
    "llama": (LLAMA, {}),
    "long heads": (QWEN3, {"head_dim": 48, "hidden_size": 72, "intermediate_size": 200}),
    "many a group": (QWEN3, {"num_key_value_heads": 1, "head_dim": 16}),
    "odd heads": (QWEN3, {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 20}),
}


@pytest.fixture(params=SHAPES)
def model(request, tmp_path):
    config, changes = SHAPES[request.param]
    return load(write_checkpoint(tmp_path, config, **changes))


@dataclass
class Step:
    """What rows bring: new tokens of each, none for those that are not in the batch."""

    counts: dict[int, int]


# Rows that enter at once and later, chunks, single tokens, and more queries than a block has.
STEPS = [
    Step({0: 33, 1: 5, 2: 1}),
    Step({0: 1, 1: 1, 2: 1}),
    Step({3: 40, 1: 6, 0: 7}),
    Step({3: 2, 2: 17, 0: 1, 1: 1}),
    Step({0: 60, 1: 60, 2: 60, 3: 60}),
]
LENGTH = 128


def tokens_of(row: int) -> torch.Tensor:
    return torch.arange(LENGTH) * (7 + 4 * row) % 61


def tables(block_size: int) -> list[np.ndarray]:
    """Of four rows, in no order, and never the null block."""
    each = -(-LENGTH // block_size)
    blocks = np.random.default_rng(0).permutation(np.arange(1, 1 + 4 * each))
    return [blocks[row * each : (row + 1) * each] for row in range(4)]


@torch.inference_mode()
def results(forward, steps=STEPS):
    """Hidden states and taps [1 + T, N, H] of every row, by its tokens in order."""
    found: dict[int, list[torch.Tensor]] = {}
    ends: dict[int, int] = {}
    own = tables(forward.cache.block_size)
    for step in steps:
        rows, counts = list(step.counts), list(step.counts.values())
        starts = [ends.get(row, 0) for row in rows]
        spans = [torch.arange(s, s + n) for s, n in zip(starts, counts, strict=True)]
        ids = torch.cat([tokens_of(row)[span] for row, span in zip(rows, spans, strict=True)])
        ends |= {row: s + n for row, s, n in zip(rows, starts, counts, strict=True)}
        lens = np.array([ends[row] for row in rows])
        forward.plan(AttentionBatch(np.array(counts), lens, [own[row] for row in rows]))
        hidden, tapped = forward.run(ids, TAPS)
        whole = torch.stack([hidden, *tapped])
        for row, part in zip(rows, whole.split(counts, dim=1), strict=True):
            found.setdefault(row, []).append(part)
    return {row: torch.cat(parts, dim=1) for row, parts in found.items()}


def make(model, block_size=16, kv_dtype=torch.float32):
    sizes = {"num_blocks": 4 * LENGTH // block_size + 5, "block_size": block_size}
    return CompiledForward(model, **sizes, kv_dtype=kv_dtype)


def by_torch(model, block_size=16, kv_dtype=torch.float32):
    sizes = {"num_blocks": 4 * LENGTH // block_size + 5, "block_size": block_size}
    return TorchForward(model, **sizes, deterministic=True, kv_dtype=kv_dtype)


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for row, states in found.items():
        assert torch.equal(states, expected[row][:, : states.shape[1]]), row


@pytest.mark.slow
@pytest.mark.parametrize(
    "block_size", [1, 16, *(pytest.param(size, marks=SLOW) for size in (4, 24, 32))]
)
def test_states_and_taps_are_torchs(model, block_size):
    found, expected = results(make(model, block_size)), results(by_torch(model, block_size))
    for row in expected:
        torch.testing.assert_close(found[row], expected[row], atol=5e-5, rtol=0)


def kept_by(forward, layer):
    """Keys and values [2, KV, positions, D] of row 0."""
    return torch.stack(forward.cache.read(layer, torch.from_numpy(tables(16)[0][:6])))


@torch.inference_mode()
def test_keys_and_values_are_torchs(model):
    ours, others = make(model), by_torch(model)
    results(ours)
    results(others)
    for layer in range(model.config.num_layers):
        found, expected = kept_by(ours, layer), kept_by(others, layer)
        torch.testing.assert_close(found, expected, atol=5e-5, rtol=0)


@pytest.mark.slow
@torch.inference_mode()
def test_keys_and_values_are_rounded_when_they_are_kept(model):
    exact, ours, others = make(model), make(model, kv_dtype=HALF), by_torch(model, kv_dtype=HALF)
    found, expected = results(ours), results(others)
    results(exact)
    # The first layer's depend on no others.
    assert torch.equal(kept_by(ours, 0), kept_by(exact, 0).to(HALF).float())
    assert not torch.equal(kept_by(ours, 0), kept_by(exact, 0))
    for layer in range(model.config.num_layers):
        both = kept_by(ours, layer), kept_by(others, layer)
        torch.testing.assert_close(*both, atol=1e-2, rtol=1e-2)
    for row in expected:
        torch.testing.assert_close(found[row], expected[row], atol=2e-2, rtol=0)


@pytest.mark.parametrize("kv_dtype", KEPT)
def test_bits_do_not_depend_on_the_batch_nor_on_chunks(model, kv_dtype):
    expected = results(make(model, kv_dtype=kv_dtype))
    for row in range(4):
        counts = [step.counts[row] for step in STEPS if row in step.counts]
        for sizes in (counts, *(chunks(sum(counts), size) for size in (1, 5, 23, sum(counts)))):
            found = results(make(model, kv_dtype=kv_dtype), [Step({row: n}) for n in sizes])
            assert_same_bits(found, {row: expected[row]})


def test_torch_s_bits_do_not_depend_on_chunks_either_where_keys_are_rounded(qwen3):
    expected = results(by_torch(qwen3, kv_dtype=HALF))
    for size in (1, 5, 23):
        steps = [Step({0: n}) for n in chunks(expected[0].shape[1], size)]
        assert_same_bits(results(by_torch(qwen3, kv_dtype=HALF), steps), {0: expected[0]})


def chunks(total, size):
    return [min(size, total - start) for start in range(0, total, size)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "block_size", [1, 24, *(pytest.param(size, marks=SLOW) for size in (2, 8, 64))]
)
@pytest.mark.parametrize("kv_dtype", KEPT)
def test_bits_do_not_depend_on_the_size_of_blocks(model, block_size, kv_dtype):
    usual = results(make(model, kv_dtype=kv_dtype))
    assert_same_bits(results(make(model, block_size, kv_dtype)), usual)


@pytest.mark.parametrize("num_threads", [3, *(pytest.param(n, marks=SLOW) for n in (2, 7))])
@pytest.mark.parametrize("kv_dtype", KEPT)
def test_bits_do_not_depend_on_threads(model, num_threads, kv_dtype):
    expected = results(make(model, kv_dtype=kv_dtype))
    torch.set_num_threads(num_threads)  # `one_thread` sets it back
    assert_same_bits(results(make(model, kv_dtype=kv_dtype)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("most_rows", [1, 2, 5, 6])
@pytest.mark.parametrize("kv_dtype", KEPT)
def test_bits_do_not_depend_on_how_many_queries_are_a_block(
    model, most_rows, kv_dtype, monkeypatch
):
    expected = results(make(model, kv_dtype=kv_dtype))
    shape = attention_module.Shape
    monkeypatch.setattr(
        attention_module,
        "Shape",
        lambda dim, tile, columns, _, num_bytes: shape(dim, tile, columns, most_rows, num_bytes),
    )
    attention_module.attention_kernels.cache_clear()
    try:
        assert_same_bits(results(make(model, kv_dtype=kv_dtype)), expected)
    finally:
        attention_module.attention_kernels.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", KEPT)
def test_bits_are_those_of_a_machine_with_narrower_vectors(model, kv_dtype, monkeypatch):
    expected = results(make(model, kv_dtype=kv_dtype))

    class Narrow:
        """LLVM of a processor with AVX2."""

        def __getattr__(self, name):
            return getattr(machine_code_llvm, name)

        def get_host_cpu_name(self):
            return "haswell"

        def get_host_cpu_features(self):
            return type(machine_code_llvm.get_host_cpu_features())({"avx2": True, "fma": True})

    machine_code_llvm = machine_code.llvm
    monkeypatch.setattr(machine_code, "llvm", Narrow())
    attention_module.attention_kernels.cache_clear()
    try:
        assert_same_bits(results(make(model, kv_dtype=kv_dtype)), expected)
    finally:
        attention_module.attention_kernels.cache_clear()


@pytest.mark.parametrize("name", ["qk_norm", "gates"])
def test_large_numbers_are_torchs(tmp_path, name):
    """Scores that lie hundreds apart, and gates of hundreds: exp has a range."""
    folder = write_checkpoint(tmp_path, QWEN3)
    tensors = load_file(folder / "model.safetensors")
    for key in tensors:
        if name == "qk_norm" and "q_norm" in key:
            tensors[key] *= 300
        if name == "gates" and "gate_proj" in key:
            tensors[key] *= 200
    save_file(tensors, folder / "model.safetensors")
    model = load(folder)
    found, expected = results(make(model)), results(by_torch(model))
    for row in expected:
        # Softmax of scores so far apart passes on the last bits of a score a hundredfold.
        torch.testing.assert_close(found[row], expected[row], atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("kv_dtype", KEPT)
def test_what_no_row_wrote_is_never_read(qwen3, kv_dtype):
    forward, fresh = make(qwen3, kv_dtype=kv_dtype), make(qwen3, kv_dtype=kv_dtype)
    forward.cache.keys.fill_(torch.nan)
    forward.cache.values.fill_(torch.nan)
    assert_same_bits(results(forward), results(fresh))


def test_room_of_a_larger_batch_serves_a_smaller_one(qwen3):
    forward = make(qwen3)
    results(forward)
    for kept in forward._workspace:
        kept.fill(1e30 if kept.dtype == np.float32 else 1 << 60)
    assert_same_bits(results(forward), results(make(qwen3)))


def test_results_outlive_the_next_forward(qwen3):
    forward = make(qwen3)
    first = results(forward, STEPS[:1])
    kept = {row: states.clone() for row, states in first.items()}
    results(forward)
    assert_same_bits(first, kept)


def test_a_row_that_is_no_number_stays_alone(qwen3):
    expected = results(make(qwen3))
    forward = make(qwen3)
    results(forward, STEPS[:1])
    forward.cache.values[:, tables(16)[1][0], :, 0] = torch.nan
    found = results(forward, [Step({0: 60, 2: 30, 3: 20})])
    assert all(states.isfinite().all() for states in found.values())
    assert torch.equal(found[0], expected[0][:, :60])


@pytest.mark.slow
def test_a_profile_names_it(qwen3):
    with torch.profiler.profile() as profile:
        results(make(qwen3), STEPS[:1])
    assert "specserve::layers" in {event.key for event in profile.key_averages()}
