"""What a launch decides once, from wishes and the machine."""

import re

import msgspec
import pytest

from specserve.errors import InvalidField, Unsupported
from specserve.settings.config import (
    Config,
    EngineConfig,
    ModelConfig,
    SpeculationConfig,
    TelemetryConfig,
    TopologyConfig,
    load_config,
    read_resolved,
    write_resolved,
)
from specserve.settings.hardware import probe
from tests.specserve.settings.resolving import DEVICES, MACHINE, resolved, speculating


def test_resolution_survives_the_trip_to_a_child(tmp_path):
    config = resolved()
    write_resolved(config, tmp_path / "config.json")
    assert read_resolved(tmp_path / "config.json") == config


def test_nothing_is_left_undecided_on_cpu():
    config = resolved()
    wishes = {
        "drafter", "colocated_drafter", "local_head", "gamma", "min_survival", "saguaro_c",
    }  # fmt: skip
    files = {"server.api_key_file", "server.tls_cert", "server.tls_key"}
    optional = {"model.ballast", "telemetry.otlp_endpoint"} | files
    optional |= {f"speculation.{key}" for key in wishes}
    optional |= {"topology.rendezvous", "topology.spread", "topology.draft_address"}  # elsewhere
    undecided = {
        f"{section}.{key}"
        for section in Config.__struct_fields__
        for key, value in msgspec.structs.asdict(getattr(config, section)).items()
        if value is None
    }
    assert undecided == optional
    assert config.num_blocks is not None


def test_resolution_changes_no_explicit_wish():
    wish = Config(
        model=ModelConfig(name="n", dtype="bfloat16", max_model_len=100, generation_config="none"),
        topology=TopologyConfig(topology="2+0", device="cpu", threads=2, mps=False),
        engine=EngineConfig(
            kv_dtype="float32", kv_memory="1MiB", deterministic=False, cuda_graphs=False
        ),
    )
    config = resolved(wish)
    assert (config.model.name, config.model.dtype) == ("n", "bfloat16")
    assert (config.model.max_model_len, config.model.generation_config) == (100, "none")
    assert config.topology == wish.topology
    assert config.engine == wish.engine


def test_a_format_of_tool_calls_is_called_as_by_vllm():
    wrong = Config(model=ModelConfig(tool_call_parser="qwen25"))
    problem = (
        r"^model.tool_call_parser: 'qwen25' is not known \(auto, hermes, llama3_json\); type her"
    )
    with pytest.raises(InvalidField, match=problem):
        resolved(wrong)


def test_cuda_is_chosen_where_there_are_enough_devices():
    machine = msgspec.structs.replace(MACHINE, cuda_devices=DEVICES)
    config = resolved(Config(topology=TopologyConfig(topology="2+0")), machine)
    assert [p.device for p in config.placements] == ["cuda:0", "cuda:1", "cpu"]
    assert (config.model.dtype, config.engine.deterministic) == ("bfloat16", False)
    assert config.num_blocks is None  # measured by the target node
    config = resolved(Config(topology=TopologyConfig(topology="4+0")), machine)
    assert config.topology.device == "cpu"


@pytest.mark.parametrize(
    ("topology", "oversubscribe", "wish", "link", "collectives"),
    [
        ("1+1", False, None, "nccl", "nccl"),
        ("1+1", False, "shm", "shm", "nccl"),
        ("2+0", False, None, "nccl", "nccl"),
        ("1+1", True, None, "nccl", "nccl"),  # two processes, two devices: nothing is shared
        ("1+2", True, None, "shm", "gloo"),
        ("1+2", True, "nccl", "nccl", "gloo"),
    ],
)
def test_nccl_is_the_link_where_every_process_has_a_device(
    topology, oversubscribe, wish, link, collectives
):
    machine = msgspec.structs.replace(MACHINE, cuda_devices=DEVICES)
    placed = TopologyConfig(topology=topology, device="cuda", oversubscribe=oversubscribe)
    mode = "off" if topology.endswith("0") else "async"
    speculation = SpeculationConfig(mode=mode, link=wish)
    config = resolved(Config(topology=placed, speculation=speculation), machine)
    assert (config.speculation.link, config.collectives) == (link, collectives)


def test_rounds_travel_through_shared_memory_on_a_cpu():
    config = resolved(speculating("async", "1+1"))
    assert (config.speculation.link, config.collectives) == ("shm", "gloo")


@pytest.mark.parametrize(
    ("speculation", "message"),
    [
        (
            {"verify_policy": "best"},
            "speculation.verify_policy: 'best' is not known "
            "(fixed, threshold, price, causal, barrier, global)",
        ),
        ({"verify_policy": "threshold"}, "threshold needs a speculation.min_survival"),
        (
            {"verify_policy": "causal", "min_survival": 0.2},
            "speculation.min_survival: is the threshold's",
        ),
        ({"verify_policy": "global"}, "global is not exact for foreseeable"),
        ({"verify_policy": "global", "verification": "rejection"}, "not exact for rejection"),
    ],
)
def test_a_policy_is_refused_where_it_is_not_exact_or_lacks_something(speculation, message):
    with pytest.raises(InvalidField, match=re.escape(message)):
        resolved(speculating("sync", **speculation))


@pytest.mark.parametrize(
    ("speculation", "policy"),
    [
        ({}, "price"),
        ({"min_survival": 0.2}, "threshold"),
        ({"verify_policy": "barrier"}, "barrier"),
        ({"verify_policy": "global", "verification": "coupled"}, "global"),
    ],
)
def test_the_policy_by_default_is_the_price_or_a_threshold_that_was_given(speculation, policy):
    assert resolved(speculating("sync", **speculation)).speculation.policy == policy


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Config(model=ModelConfig(dtype="int8")), "model.dtype: 'int8' is not known"),
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
            speculating("async", "1+1", miss_policy="local_draft"),
            "speculation.miss_policy: local_draft needs a speculation.colocated_drafter",
        ),
        (
            speculating("sync", draft_threads=2),
            "speculation.draft_threads: is for draft processes, 1+0 has none",
        ),
        (
            speculating("auto", "1+1", gamma=1),
            "speculation.gamma: 1: the last token of a block that is pushed is never verified",
        ),
        (speculating("sync", "2+1"), "topology.topology: 2+1 has draft processes"),
        (
            speculating("auto", miss_policy="wait"),
            "speculation.miss_policy: 'wait' is not known "
            "(auto, skip, ngram, local_draft, draft_now)",
        ),
        (
            speculating("auto", miss_policy="draft_here"),
            "speculation.miss_policy: 'draft_here' is not known "
            "(auto, skip, ngram, local_draft, draft_now); it is called local_draft now",
        ),
        (speculating("auto", link="gloo"), "speculation.link: 'gloo' is not known (shm, nccl)"),
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
    [("fan_out", "0"), ("fan_out", "1025"), ("saguaro_c", "1.1"), ("min_survival", "1.1"),
     ("draft_timeout_s", "0.01"), ("draft_threads", "0")],
)  # fmt: skip
def test_a_number_of_speculation_out_of_range_is_refused(key, value):
    with pytest.raises(InvalidField, match=rf"speculation\.{key}: expected"):
        load_config(None, {f"speculation.{key}": value})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            Config(topology=TopologyConfig(topology="9+0")),
            r"^topology\.topology: 9 target ranks, but num_attention_heads is 8: at most 8 ranks",
        ),
        (Config(topology=TopologyConfig(device="cuda")), "no CUDA device"),
        (Config(engine=EngineConfig(kv_memory="1k")), "no room for a single block"),
        (
            speculating("async", "1+1", link="nccl"),
            r"speculation\.link: nccl .* is cpu \(--link shm\)",
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


def test_a_batch_has_a_token_for_every_row():
    with pytest.raises(InvalidField, match=r"engine\.max_batch_rows: 513 is more than .*, 512; r"):
        resolved(Config(engine=EngineConfig(max_batch_rows=513)))
    with pytest.raises(InvalidField, match=r"engine\.max_batch_tokens: 7 is less"):
        resolved(Config(engine=EngineConfig(max_batch_rows=8, max_batch_tokens=7)))


@pytest.mark.parametrize("seconds", ["inf", "1e10", "nan"])
def test_times_no_timer_can_hold_are_refused(seconds: str):
    with pytest.raises(InvalidField, match=r"engine\.hang_timeout_s"):
        load_config(None, {"engine.hang_timeout_s": seconds})


def test_what_is_read_by_nobody_in_one_mode_may_stand_in_a_file_for_another():
    for mode in ("off", "sync"):
        assert resolved(speculating(mode, miss_policy="local_draft")).speculation.mode == mode
