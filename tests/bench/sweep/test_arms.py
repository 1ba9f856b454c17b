"""Who takes part, on which hardware, and with which flags."""

import argparse

import msgspec
import pytest

from bench.sweep.arms import Drafting, arms_of
from bench.sweep.plan import FULL, QUICK, Load
from specserve.commands.service_options import add_service_options, read_config
from specserve.errors import InvalidField
from specserve.processes.launch import resolve_here
from tests.bench.sweep.made_up import arms


def plan(**changes):
    return msgspec.structs.replace(FULL, **changes)


def names(plan, num_cores: int | None = 2) -> list[str]:
    return [arm.name for arm in arms(plan, num_cores)]


def test_every_mode_takes_part_with_equal_hardware_and_fixed_lengths():
    assert names(FULL) == [
        "off", "sync", "sync fixed", "async", "async fixed", "auto", "sync 2 threads",
    ]  # fmt: skip


def test_modes_are_compared_under_the_first_policy_on_the_first_topology_with_drafts():
    found = {arm.name: arm for arm in arms(plan(topologies=("1+0", "1+1", "2+0", "2+1")), None)}
    assert [name for name, arm in found.items() if arm.is_main] == ["off", "sync", "async", "auto"]
    assert {name for name, arm in found.items() if arm.on_main} == {
        "off", "sync", "sync fixed", "async", "async fixed", "auto",
    }  # fmt: skip
    assert {"off 2+0", "sync 2+0", "async 2+1", "auto 2+1"} <= found.keys()
    assert len(found) == len(set(found))


def test_equal_hardware_has_as_many_cores_and_no_draft_process():
    found = {arm.name: arm for arm in arms(plan(topologies=("1+1", "2+0", "2+1", "3+0")), None)}

    def equal(name: str) -> set[str]:
        return {other.name for other in found.values() if other.is_equal_hardware(found[name])}

    assert equal("async") == equal("auto") == {"sync 2 threads", "off 2+0", "sync 2+0"}
    assert equal("async 2+1") == {"off 3+0", "sync 3+0"}  # three cores are not shared by two ranks
    assert equal("sync") == equal("off") == set()


def test_one_core_has_no_equal_hardware_and_a_gpu_no_threads():
    alone = plan(modes=("off", "sync"), topologies=("1+0",))
    assert names(alone, num_cores=1) == ["off", "sync", "sync fixed"]
    assert names(plan(modes=("off",)), num_cores=1) == ["off"]  # nobody needs the other core
    on_gpu = arms_of(FULL, Drafting(), device="cuda", num_cores=None)
    assert "sync 2 threads" not in [arm.name for arm in on_gpu]


def test_auto_without_a_draft_process_runs_beside_the_others():
    found = arms(plan(modes=("off", "auto"), topologies=("1+0",)), 1)
    assert [(arm.name, arm.arm.topology, arm.is_main) for arm in found] == [
        ("off", "1+0", True), ("auto", "1+0", True),
    ]  # fmt: skip


def test_a_topology_without_cores_enough_is_refused_with_what_to_do():
    with pytest.raises(InvalidField, match=r"2\+1 needs 3 cores, this process may use 2; leave it"):
        arms(plan(topologies=("1+1", "2+1")), 2)
    with pytest.raises(InvalidField, match="needs 3 cores"):
        arms(plan(threads=2), 2)


def test_further_policies_are_measured_at_the_largest_load_alone_if_time_is_short():
    fixed = next(arm for arm in arms(QUICK) if arm.name == "sync fixed")
    main = next(arm for arm in arms(QUICK) if arm.name == "sync")
    sizes = [load.in_flight for load in QUICK.loads if fixed.takes_part(load, QUICK)]
    assert sizes == [16]
    assert all(main.takes_part(load, QUICK) for load in QUICK.loads)
    assert fixed.takes_part(Load(in_flight=1), FULL)


@pytest.mark.parametrize(
    "drafting", [Drafting(), Drafting(drafter="lm"), Drafting(drafter="ngram")], ids=str
)
def test_the_flags_of_every_service_are_those_of_launch(drafting):
    wanted = plan(policies=("price", "fixed", "threshold:0.3", "global"), topologies=("1+0", "2+1"))
    parser = argparse.ArgumentParser()
    add_service_options(parser)
    found = arms_of(wanted, drafting, device="cpu", num_cores=None)
    for arm in found:
        words = ["--target", "tiny", "--oversubscribe", *arm.service.flags]
        config = resolve_here(read_config(parser.parse_args(words)))
        assert config.speculation.mode == arm.arm.mode
        assert config.topology.topology == arm.arm.topology
        assert config.topology.threads == arm.arm.threads
        if arm.arm.policy:
            policy = arm.arm.policy.partition(":")[0]
            assert config.speculation.verify_policy == policy
    policies = {arm.arm.policy for arm in found}
    assert policies == {"", "price", "fixed", "threshold:0.3", "global"}
