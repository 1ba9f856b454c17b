"""Memory of a launch: blocks of the KV pool, weights, and what drafters keep."""

import dataclasses

import msgspec
import pytest

from specserve.errors import Unsupported
from specserve.settings.config import (
    Config,
    EngineConfig,
    ModelConfig,
    ResolvedConfig,
    SpeculationConfig,
    TopologyConfig,
)
from specserve.settings.resolve import kv_bytes_per_token
from tests.specserve.settings.resolving import (
    DEVICES,
    MACHINE,
    SPEC,
    resolved,
)


def test_blocks_hold_sixteen_full_contexts_where_memory_allows():
    assert resolved().num_blocks == 16 * 2048 // 16
    few = resolved(Config(engine=EngineConfig(max_batch_rows=3)))
    assert few.num_blocks == 3 * 2048 // 16


def test_blocks_take_at_most_a_quarter_of_free_memory():
    machine = msgspec.structs.replace(MACHINE, available_memory=96 << 20)
    config = resolved(hardware=machine)
    block_bytes = 16 * kv_bytes_per_token(SPEC, dtype="float32")
    assert config.num_blocks == (24 << 20) // block_bytes
    two = resolved(Config(topology=TopologyConfig(topology="2+0")), machine)
    assert two.num_blocks == config.num_blocks  # half the memory, half the heads
    # Of three ranks one keeps two heads, but all together as many as one; of eight, each keeps one.
    machine = msgspec.structs.replace(machine, cores=tuple(range(8)))
    three = resolved(Config(topology=TopologyConfig(topology="3+0")), machine)
    assert three.num_blocks == config.num_blocks
    eight = resolved(Config(topology=TopologyConfig(topology="8+0")), machine)
    assert eight.num_blocks == config.num_blocks // 2


def test_keys_and_values_take_half_the_memory_in_bfloat16():
    def of(dtype: str | None = None, kv_dtype: str | None = None) -> ResolvedConfig:
        engine = EngineConfig(kv_memory="64MiB", kv_dtype=kv_dtype)
        return resolved(Config(engine=engine, model=ModelConfig(dtype=dtype)))

    whole = of()
    assert whole.engine.kv_dtype == "float32"
    assert whole.num_blocks is not None
    for dtype, wish, kept in (
        (None, "bfloat16", "bfloat16"),
        ("bfloat16", None, "bfloat16"),
        ("bfloat16", "float32", "float32"),
        ("float16", None, "float32"),
    ):
        found = of(dtype, wish)
        assert found.engine.kv_dtype == kept
        assert found.num_blocks == whole.num_blocks * (2 if kept == "bfloat16" else 1)


def test_on_cuda_keys_and_values_are_kept_as_the_model_computes():
    machine = msgspec.structs.replace(MACHINE, cuda_devices=DEVICES)
    for dtype in ("float32", "bfloat16", "float16"):
        config = Config(topology=TopologyConfig(device="cuda"), model=ModelConfig(dtype=dtype))
        assert resolved(config, machine).engine.kv_dtype == dtype


def test_what_a_drafter_keeps_counts_as_memory():
    """Per token: 1024 values of KV, 256 of features, 1280 of a context of five layers."""

    def num_blocks(speculation: SpeculationConfig, **engine) -> int | None:
        config = Config(speculation=speculation, engine=EngineConfig(**engine))
        return resolved(config, machine).num_blocks

    machine = msgspec.structs.replace(MACHINE, available_memory=256 << 20)
    sync = SpeculationConfig(mode="sync", drafter="any")
    plain = SpeculationConfig(mode="off")
    ngram = SpeculationConfig(mode="sync", drafter="ngram")
    assert num_blocks(sync) == (64 << 20) // (16 * 4 * (1024 + 256 + 1280))
    assert num_blocks(plain) == num_blocks(ngram) == (64 << 20) // (16 * 4 * 1024)
    halved = (64 << 20) // (16 * (2 * 1024 + 4 * (256 + 1280)))  # drafters keep float32
    assert num_blocks(sync, kv_dtype="bfloat16") == halved
    for_kv = {"kv_memory": "160MiB"}
    assert num_blocks(plain, **for_kv) == num_blocks(ngram, **for_kv) == 2560
    with pytest.raises(Unsupported, match=r"draft contexts, of 400\.0 MiB exceed the 256"):
        num_blocks(sync, **for_kv)


def test_kv_memory_becomes_blocks():
    config = resolved(Config(engine=EngineConfig(kv_memory="64MiB")))
    assert config.num_blocks == (64 << 20) // (16 * 2 * 4 * 4 * 32 * 4)


@pytest.mark.parametrize(
    ("engine", "kv_memory"),
    [
        (EngineConfig(), "128.0 MiB"),
        (EngineConfig(max_batch_rows=1), "8.0 MiB"),
        (EngineConfig(kv_memory="64MiB"), "64MiB"),
    ],
    ids=str,
)
def test_the_memory_of_the_pool_is_told(engine, kv_memory):
    assert resolved(Config(engine=engine)).engine.kv_memory == kv_memory


def test_ballast_layers_count_in_the_kv_of_a_token():
    plain = resolved(Config(engine=EngineConfig(kv_memory="64MiB"))).num_blocks
    padded = resolved(
        Config(engine=EngineConfig(kv_memory="64MiB"), model=ModelConfig(ballast="60M"))
    ).num_blocks
    assert padded is not None
    assert plain is not None
    assert padded < plain


def test_kv_of_a_token_is_shared_by_the_ranks():
    whole = kv_bytes_per_token(SPEC, dtype="float32")
    assert whole == 2 * 4 * 4 * 32 * 4
    assert kv_bytes_per_token(SPEC, dtype="bfloat16", tensor_parallel=4) == whole // 8
    # The rank that keeps most counts; where ranks outnumber key-value heads, each keeps one.
    of_ranks = {1: 4, 2: 2, 3: 2, 4: 1, 5: 1, 8: 1}
    for num_ranks, heads in of_ranks.items():
        found = kv_bytes_per_token(SPEC, dtype="float32", tensor_parallel=num_ranks)
        assert found == whole * heads // 4
    deeper = dataclasses.replace(SPEC, ballast_widths=(64, 64))
    assert kv_bytes_per_token(deeper, dtype="float32") == whole * 6 // 4


def test_a_context_shrinks_to_the_pool_unless_it_was_asked_for():
    three = EngineConfig(kv_memory="200KiB")  # of 64 KiB each, and a rest
    config = resolved(Config(engine=three))
    assert (config.num_blocks, config.model.max_model_len) == (3, 48)
    wish = Config(engine=three, model=ModelConfig(max_model_len=49))
    with pytest.raises(Unsupported, match=r"model\.max_model_len: 49 tokens .* holds 48 \(engine"):
        resolved(wish)


def test_weights_and_pools_beyond_the_memory_are_refused_before_anything_starts():
    with pytest.raises(Unsupported, match="memory: weights of"):
        resolved(Config(engine=EngineConfig(kv_memory="9000TiB")))
    with pytest.raises(Unsupported, match="memory: weights of"):
        resolved(Config(model=ModelConfig(ballast="90000B")))


def test_weights_of_16_bits_take_half_as_much_memory():
    machine = msgspec.structs.replace(MACHINE, available_memory=1_600_000_000)

    def config(dtype: str) -> Config:
        model = ModelConfig(ballast="500M", dtype=dtype)
        return Config(model=model, engine=EngineConfig(kv_memory="1MiB"))

    assert resolved(config("bfloat16"), machine).model.dtype == "bfloat16"
    with pytest.raises(Unsupported, match=r"memory: weights of .* \(model\.ballast, model\.dtype,"):
        resolved(config("float32"), machine)


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        ("cpu", "bfloat16", "float32"),
        ("cpu", "float32", "float32"),
        ("cuda", "bfloat16", "bfloat16"),
    ],
)
def test_on_a_cpu_tokens_are_kept_in_float32(device, dtype, expected):
    model, topology = ModelConfig(dtype=dtype), TopologyConfig(device=device)
    assert ResolvedConfig(model=model, topology=topology).state_dtype == expected
