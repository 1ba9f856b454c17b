"""What a launch decides once, from wishes and the machine."""

import dataclasses
from pathlib import Path

import msgspec
import pytest

from specserve.config import (
    Config,
    EngineConfig,
    ModelConfig,
    ResolvedConfig,
    ServerConfig,
    SpeculationConfig,
    TelemetryConfig,
    TopologyConfig,
    load_config,
    read_resolved,
    write_resolved,
)
from specserve.errors import InvalidField, Unsupported
from specserve.hardware import CudaDevice, Hardware, probe
from specserve.model.config import ModelSpec, RopeSpec
from specserve.resolve import kv_bytes_per_token, resolve

AUTO = Config()
FOLDER = Path("/models/tiny")
GIB = 1 << 30
MACHINE = Hardware(cores=(0, 1, 2, 3), cpu_name="test", available_memory=8 * GIB)
DEVICES = tuple(CudaDevice(index=i, name="test", memory=80 * GIB) for i in range(2))
SPEC = ModelSpec(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=768,
    num_real_layers=4,
    num_heads=8,
    num_kv_heads=4,
    head_dim=32,
    max_position_embeddings=2048,
    rms_norm_eps=1e-6,
    rope=RopeSpec(theta=10_000.0),
    qk_norm=True,
    tie_word_embeddings=True,
    eos_token_ids=(0,),
    dtype="bfloat16",
)


def resolved(config: Config = AUTO, hardware: Hardware = MACHINE):
    return resolve(config, hardware, SPEC, FOLDER)


def speculating(mode: str, topology: str = "1+0", **fields) -> Config:
    speculation = SpeculationConfig(mode=mode, **fields)
    return Config(topology=TopologyConfig(topology=topology), speculation=speculation)


def test_resolution_survives_the_trip_to_a_child(tmp_path):
    config = resolved()
    write_resolved(config, tmp_path / "config.json")
    assert read_resolved(tmp_path / "config.json") == config


def test_nothing_is_left_undecided_on_cpu():
    config = resolved()
    wishes = {
        "drafter", "colocated_drafter", "local_head", "gamma", "min_survival", "layout",
        "saguaro_c",
    }  # fmt: skip
    optional = {"model.ballast", "model.half_weights"} | {f"speculation.{key}" for key in wishes}
    undecided = {
        f"{section}.{key}"
        for section in Config.__struct_fields__
        for key, value in msgspec.structs.asdict(getattr(config, section)).items()
        if value is None
    }
    assert undecided == optional


def test_resolution_changes_no_explicit_wish():
    wish = Config(
        model=ModelConfig(name="n", dtype="bfloat16", max_model_len=100, generation_config="none"),
        topology=TopologyConfig(topology="2+0", device="cpu", threads=2, collectives="gloo"),
        engine=EngineConfig(
            kv_dtype="float32", num_blocks=7, deterministic=False, cuda_graphs=False
        ),
    )
    config = resolved(wish)
    assert (config.model.name, config.model.dtype) == ("n", "bfloat16")
    assert (config.model.max_model_len, config.model.generation_config) == (100, "none")
    assert config.topology == wish.topology
    assert msgspec.structs.replace(config.engine, kv_memory=None) == wish.engine


def test_cuda_is_chosen_where_there_are_enough_devices():
    machine = msgspec.structs.replace(MACHINE, cuda_devices=DEVICES)
    config = resolved(Config(topology=TopologyConfig(topology="2+0")), machine)
    assert [p.device for p in config.placements] == ["cuda:0", "cuda:1", "cpu"]
    assert (config.model.dtype, config.engine.deterministic) == ("bfloat16", False)
    assert config.engine.num_blocks is None  # measured by the target node
    config = resolved(Config(topology=TopologyConfig(topology="4+0")), machine)
    assert config.topology.device == "cpu"


def test_nccl_is_for_cuda_devices_and_chosen_for_ranks_with_one_each():
    machine = msgspec.structs.replace(MACHINE, cuda_devices=DEVICES)
    config = resolved(speculating("async", "1+1", link="nccl"), machine)
    assert (config.speculation.link, config.topology.collectives) == ("nccl", "nccl")
    assert config.placement("target").device != config.placement("draft").device
    shared = TopologyConfig(topology="1+2", device="cuda", oversubscribe=True)
    config = resolved(Config(topology=shared, speculation=config.speculation), machine)
    assert (config.speculation.link, config.topology.collectives) == ("nccl", "gloo")
    wished = msgspec.structs.replace(shared, collectives="nccl")
    config = resolved(Config(topology=wished, speculation=config.speculation), machine)
    assert config.topology.collectives == "nccl"
    config = resolved(speculating("async", "1+1"))
    assert (config.speculation.link, config.topology.collectives) == ("shm", "gloo")


def test_blocks_hold_sixteen_full_contexts_where_memory_allows():
    assert resolved().engine.num_blocks == 16 * 2048 // 16
    few = resolved(Config(engine=EngineConfig(max_batch_rows=3)))
    assert few.engine.num_blocks == 3 * 2048 // 16


def test_blocks_take_at_most_a_quarter_of_free_memory():
    machine = msgspec.structs.replace(MACHINE, available_memory=64 << 20)
    config = resolved(hardware=machine)
    block_bytes = 16 * kv_bytes_per_token(SPEC, dtype="float32")
    assert config.engine.num_blocks == (16 << 20) // block_bytes
    two = resolved(Config(topology=TopologyConfig(topology="2+0")), machine)
    assert two.engine.num_blocks == config.engine.num_blocks  # half the memory, half the heads


def test_keys_and_values_take_half_the_memory_in_bfloat16():
    def of(dtype: str | None = None, kv_dtype: str | None = None) -> EngineConfig:
        engine = EngineConfig(kv_memory="64MiB", kv_dtype=kv_dtype)
        return resolved(Config(engine=engine, model=ModelConfig(dtype=dtype))).engine

    whole = of()
    assert whole.kv_dtype == "float32"
    assert whole.num_blocks is not None
    for dtype, wish, kept in (
        (None, "bfloat16", "bfloat16"),
        ("bfloat16", None, "bfloat16"),
        ("bfloat16", "float32", "float32"),
        ("float16", None, "float32"),
    ):
        found = of(dtype, wish)
        assert found.kv_dtype == kept
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
        return resolved(config, machine).engine.num_blocks

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
    assert config.engine.num_blocks == (64 << 20) // (16 * 2 * 4 * 4 * 32 * 4)


@pytest.mark.parametrize(
    ("engine", "kv_memory"),
    [
        (EngineConfig(), "128.0 MiB"),
        (EngineConfig(num_blocks=3), "192.0 KiB"),
        (EngineConfig(num_blocks=3, kv_memory="64MiB"), "192.0 KiB"),
        (EngineConfig(kv_memory="64MiB"), "64MiB"),
    ],
    ids=str,
)
def test_the_memory_of_the_pool_is_told(engine, kv_memory):
    assert resolved(Config(engine=engine)).engine.kv_memory == kv_memory


def test_weights_are_half_where_there_is_a_choice_only():
    assert resolved().model.half_weights is None  # the target knows its processor and weights
    assert resolved(Config(model=ModelConfig(dtype="bfloat16"))).model.half_weights is False


def test_ballast_layers_count_in_the_kv_of_a_token():
    plain = resolved(Config(engine=EngineConfig(kv_memory="64MiB"))).engine.num_blocks
    padded = resolved(
        Config(engine=EngineConfig(kv_memory="64MiB"), model=ModelConfig(ballast="60M"))
    ).engine.num_blocks
    assert padded is not None
    assert plain is not None
    assert padded < plain


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Config(model=ModelConfig(dtype="int8")), "model.dtype: 'int8' is not known"),
        (
            Config(model=ModelConfig(dtype="bfloat16", half_weights=True)),
            "model.half_weights: is for float32 arithmetic on the CPU, not bfloat16 on cpu",
        ),
        (
            Config(model=ModelConfig(dtype="float16", half_weights=False)),
            "model.half_weights: is for float32 arithmetic on the CPU, not float16 on cpu",
        ),
        (Config(model=ModelConfig(max_model_len=4096)), "model.max_model_len: 4096 exceeds"),
        (Config(model=ModelConfig(ballast="much")), "model.ballast: 'much' is not a count"),
        (Config(topology=TopologyConfig(device="tpu")), "topology.device: 'tpu' is not known"),
        (
            Config(topology=TopologyConfig(topology="2")),
            "topology.topology: '2' is not of the form",
        ),
        (Config(engine=EngineConfig(kv_memory="lots")), "engine.kv_memory: 'lots' is not a size"),
        (
            Config(engine=EngineConfig(kv_dtype="float16")),
            "engine.kv_dtype: 'float16' is not known on cpu (float32, bfloat16)",
        ),
        (Config(telemetry=TelemetryConfig(log_level="loud")), "telemetry.log_level: 'loud'"),
        (speculating("maybe"), "speculation.mode: 'maybe' is not known (off, sync, async, auto)"),
        (speculating("async"), "speculation.mode: async needs a draft process"),
        (speculating("off", "1+1"), "topology.topology: 1+1 has draft processes"),
        (
            speculating("async", "1+1", miss_policy="draft_here"),
            "speculation.miss_policy: draft_here needs a speculation.colocated_drafter",
        ),
        (
            speculating("sync", saguaro_c=0.5),
            "speculation.saguaro_c: is for draft processes, 1+0 has none",
        ),
        (
            speculating("auto", "1+1", gamma=1),
            "speculation.gamma: 1: the last token of a block that is pushed is never verified",
        ),
        (
            speculating("auto", "1+1", draft_wait_ms=60_000.0),
            "speculation.draft_wait_ms: 60000 has to be less than half of engine.hang_timeout_s",
        ),
        (speculating("sync", "2+1"), "topology.topology: 2+1 has draft processes"),
        (
            speculating("auto", miss_policy="wait"),
            "speculation.miss_policy: 'wait' is not known "
            "(auto, skip, ngram, draft_here, draft_now)",
        ),
        (
            speculating("auto", fan_out_rule="best"),
            "speculation.fan_out_rule: 'best' is not known (measured, geometric, uniform)",
        ),
        (
            speculating("auto", link="tcp"),
            "speculation.link: 'tcp' is not known (shm, nccl, gloo)",
        ),
        (
            Config(topology=TopologyConfig(topology="2+0", collectives="mpi")),
            "topology.collectives: 'mpi' is not known (gloo, nccl)",
        ),
    ],
)
def test_a_value_that_is_never_right_is_an_invalid_field(config, message):
    with pytest.raises(InvalidField) as caught:
        resolved(config)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("mode", "topology"),
    [("async", "1+1"), ("async", "2+1"), ("async", "1+2"), ("async", "4+1"),
     ("auto", "1+0"), ("auto", "4+1"), ("off", "2+0"), ("sync", "2+0")],
)  # fmt: skip
def test_a_mode_and_a_topology_that_fit_get_a_place_for_every_process(mode, topology):
    machine = msgspec.structs.replace(MACHINE, cores=tuple(range(8)))
    config = resolved(speculating(mode, topology), machine)
    assert (config.speculation.mode, config.topology.topology) == (mode, topology)
    num_ranks, num_drafts = map(int, topology.split("+"))
    roles = [placement.role for placement in config.placements]
    assert roles == ["target"] * num_ranks + ["draft"] * num_drafts + ["api"]
    assert config.num_draft_processes == num_drafts


def test_a_launch_refused_for_its_mode_says_what_to_type():
    with pytest.raises(InvalidField, match=r"--speculation async or auto, or --topology 2\+0"):
        resolved(speculating("off", "2+1"))
    with pytest.raises(InvalidField, match=r"use --topology 2\+1"):
        resolved(speculating("async", "2+0"))


def test_a_draft_process_has_as_many_threads_as_a_rank_unless_told_otherwise():
    config = resolved(Config(topology=TopologyConfig(threads=2)))
    assert config.speculation.draft_threads == 2
    config = resolved(speculating("async", "1+1", draft_threads=3))
    assert config.placement("target").cores == (0,)
    assert config.placement("draft").cores == (1, 2, 3)


@pytest.mark.parametrize(
    ("key", "value"),
    [("fan_out", "0"), ("fan_out", "1025"), ("wave", "257"), ("saguaro_c", "1.1"),
     ("draft_wait_ms", "0"), ("draft_timeout_s", "0.01"), ("draft_threads", "0")],
)  # fmt: skip
def test_a_number_of_speculation_out_of_range_is_refused(key, value):
    with pytest.raises(InvalidField, match=rf"speculation\.{key}: expected"):
        load_config(None, {f"speculation.{key}": value})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Config(topology=TopologyConfig(topology="3+0")), "ranks, but num_attention_heads is 8"),
        (Config(topology=TopologyConfig(device="cuda")), "no CUDA device"),
        (Config(server=ServerConfig(host="0.0.0.0")), "server.host: '0.0.0.0' is not a loopback"),
        (Config(engine=EngineConfig(kv_memory="1k")), "no room for a single block"),
        (speculating("async", "1+1", link="nccl"), r"speculation\.link: nccl .* this is cpu"),
        (
            Config(topology=TopologyConfig(topology="2+0", collectives="nccl")),
            r"topology\.collectives: nccl .* this is cpu",
        ),
    ],
)
def test_a_wish_that_cannot_be_met_is_unsupported(config, message):
    with pytest.raises(Unsupported, match=message):
        resolved(config)


def test_this_machine_can_be_probed():
    hardware = probe()
    assert hardware.cores
    assert hardware.available_memory > 1 << 20


def test_kv_of_a_token_is_shared_by_the_ranks():
    whole = kv_bytes_per_token(SPEC, dtype="float32")
    assert whole == 2 * 4 * 4 * 32 * 4
    assert kv_bytes_per_token(SPEC, dtype="bfloat16", tensor_parallel=4) == whole // 8
    deeper = dataclasses.replace(SPEC, ballast_widths=(64, 64))
    assert kv_bytes_per_token(deeper, dtype="float32") == whole * 6 // 4


def test_a_context_shrinks_to_the_pool_unless_it_was_asked_for():
    assert resolved(Config(engine=EngineConfig(num_blocks=3))).model.max_model_len == 48
    wish = Config(engine=EngineConfig(num_blocks=3), model=ModelConfig(max_model_len=49))
    with pytest.raises(Unsupported, match=r"model\.max_model_len: 49 tokens exceed"):
        resolved(wish)


def test_weights_and_pools_beyond_the_memory_are_refused_before_anything_starts():
    with pytest.raises(Unsupported, match="memory: weights of"):
        resolved(Config(engine=EngineConfig(kv_memory="9000TiB")))
    with pytest.raises(Unsupported, match="memory: weights of"):
        resolved(Config(model=ModelConfig(ballast="90000B")))


def test_a_batch_has_a_token_for_every_row():
    with pytest.raises(InvalidField, match=r"engine\.max_batch_rows: 513 is more than .*, 512; r"):
        resolved(Config(engine=EngineConfig(max_batch_rows=513)))
    with pytest.raises(InvalidField, match=r"engine\.max_batch_tokens: 7 is less"):
        resolved(Config(engine=EngineConfig(max_batch_rows=8, max_batch_tokens=7)))


@pytest.mark.parametrize("seconds", ["inf", "1e10", "nan"])
def test_times_no_timer_can_hold_are_refused(seconds: str):
    with pytest.raises(InvalidField, match=r"server\.startup_timeout_s"):
        load_config(None, {"server.startup_timeout_s": seconds})


def test_what_is_read_by_nobody_in_one_mode_may_stand_in_a_file_for_another():
    for mode in ("off", "sync"):
        assert resolved(speculating(mode, miss_policy="draft_here")).speculation.mode == mode


def test_half_weights_are_half_as_much_memory():
    machine = msgspec.structs.replace(MACHINE, available_memory=1_600_000_000)
    for half_weights, fits in ((True, True), (False, False)):
        model = ModelConfig(ballast="500M", half_weights=half_weights)
        config = Config(model=model, engine=EngineConfig(num_blocks=8))
        if fits:
            assert resolved(config, machine).model.half_weights
        else:
            with pytest.raises(Unsupported, match="memory: weights of"):
                resolved(config, machine)


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
