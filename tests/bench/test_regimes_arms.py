"""Who takes part in which contest, and in which order they are asked."""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from bench.drafter_choice import DrafterChoice
from bench.processes import usage
from bench.regimes.arms import OFF, Arm, Contest, Entrants, Service
from bench.regimes.machine_load import ForeignLoad, _Ran, _ran, _rise
from bench.regimes.measure import Interleaved
from bench.regimes.plan import FULL, QUICK, Plan
from bench.regimes.prompts import PromptChoice
from bench.regimes.records import Job, Trace
from bench.regimes.service import kv_memory_flags
from specserve.commands.service_options import add_service_options, read_config
from specserve.processes.launch import resolve_here
from specserve.sampling.verification.method import VerificationMethod
from specserve.settings.config import BLOCK_SIZE, SpeculationConfig
from specserve.settings.drafter_source import locate_drafter
from specserve.settings.target_source import EMBEDDED_TARGET
from specserve.settings.topology import parse_topology
from tests.bench.regimes_traces import AT_1, trace

CHOICES = {
    "dspark": DrafterChoice(label="dspark", drafter="dspark"),
    "dspark-async": DrafterChoice(label="dspark-async", drafter="dspark-async"),
    "dflash": DrafterChoice(label="dflash", drafter="dflash"),
    "dels": DrafterChoice(label="dels", drafter="dflash", local_head="dels"),
    "lm": DrafterChoice(label="lm", drafter="lm"),
}
COUPLED, REJECTION = VerificationMethod.COUPLED, VerificationMethod.REJECTION


def contests(plan: Plan, num_cores: int = 2, choices=CHOICES) -> dict[str, Contest]:
    entrants = Entrants(plan=plan, drafters=choices, num_cores=num_cores)
    return {contest.name: contest for contest in entrants.contests()}


def labels(contest: Contest, temperature: float) -> list[tuple[str, str]]:
    arms = contest.arms(FULL.methods, temperature)
    return [(arm.service.label, arm.method.value) for arm in arms]


def test_every_mode_and_the_equal_hardware_baseline_take_part_in_the_main_contest():
    found = labels(contests(FULL)["lm"], 0.0)
    assert [label for label, _ in found] == [
        "off", "sync lm", "async lm", "sync lm 2 threads", "auto", "off 2 threads",
    ]  # fmt: skip


def test_the_heavier_drafter_is_compared_with_the_one_it_stands_for():
    found = labels(contests(FULL)["dspark"], 0.0)
    assert [label for label, _ in found] == [
        "off", "sync dspark", "async dspark-async", "sync dspark 2 threads",
    ]  # fmt: skip


def test_auto_is_what_a_launch_without_flags_runs():
    service = next(s for s in contests(FULL)["lm"].services if s.mode == "auto")
    chosen = locate_drafter(SpeculationConfig(mode="auto"), EMBEDDED_TARGET, 1)
    names = [Path(name or "").name for name in (chosen.drafter, chosen.colocated_drafter)]
    assert service.drafter
    assert service.colocated
    assert names == [service.drafter.drafter, service.colocated.drafter]


def test_above_temperature_0_every_method_is_asked_once():
    found = labels(contests(FULL)["lm"], 1.0)
    assert len(found) == len(set(found))
    for label in ("sync lm", "async lm"):
        assert {method for name, method in found if name == label} == set(VerificationMethod)
    assert ("auto", "foreseeable") in found


def test_only_plain_rejection_needs_a_service_of_its_own():
    services = contests(FULL)["lm"].services
    methods = [service.verification for service in services if service.mode == "async"]
    assert methods == [VerificationMethod.FORESEEABLE, REJECTION]


def test_without_a_heavier_drafter_the_draft_process_runs_the_ordinary_one():
    few = {name: choice for name, choice in CHOICES.items() if name != "dspark-async"}
    assert "async dspark" in dict(labels(contests(FULL, choices=few)["dspark"], 0.0))


def test_there_is_a_contest_for_every_budget():
    found = contests(FULL)
    assert [name for name in found if "fan-out" in name][:2] == [
        "lm, fan-out 2", "lm, fan-out 8",
    ]  # fmt: skip
    assert [s.fan_out for s in found["dspark, fan-out 2"].services if s.mode == "async"] == [2]


def test_one_core_has_no_equal_hardware_baseline():
    found = contests(FULL, num_cores=1)
    assert all(s.threads == 1 for contest in found.values() for s in contest.services)


def test_families_that_are_not_wanted_are_left_out():
    plan = msgspec.structs.replace(QUICK, families=("sync-dels",))
    found = contests(plan)
    assert list(found) == ["drafters"]
    assert [service.label for service in found["drafters"].services] == ["off", "sync dels"]


@pytest.mark.parametrize("name", contests(FULL))
def test_the_flags_of_every_service_are_those_of_launch(name):
    parser = argparse.ArgumentParser()
    add_service_options(parser)
    for service in contests(FULL)[name].services:
        config = read_config(parser.parse_args(service.flags))
        assert config.speculation.mode == service.mode
        assert config.speculation.verification == service.verification
        assert config.topology.threads == service.threads
        topology = parse_topology(config.topology.topology)
        assert topology.num_draft_processes == int(service.has_draft_process)


class Asked:
    """Notes what it is asked."""

    def __init__(self, name: str, log: list[tuple[str, Job]]) -> None:
        self._name = name
        self._log = log

    def ask(self, job: Job) -> Trace:
        self._log.append((self._name, job))
        return trace([1, 1], round_s=0.1)


def run(num_groups: int, *, is_late: bool = False, warms_up: bool = False) -> list[tuple[str, Job]]:
    """What is asked: while everybody warms up, or else afterwards."""
    log: list[tuple[str, Job]] = []
    plain, sync = Service(mode=OFF), Service(mode="sync", drafter=CHOICES["dspark"])
    services = {plain: Asked("off", log), sync: Asked("sync", log)}
    arms = [
        Arm(service=plain),
        Arm(service=sync),
        Arm(service=sync, method=VerificationMethod.FORESEEABLE),
    ]  # fmt: skip
    asking = Interleaved(services, QUICK, is_late=lambda: is_late, advance=lambda what: None)
    groups = list(asking.run(AT_1, arms, [[[n]] for n in range(num_groups)], [[[98]], [[99]]]))
    assert [group.number for group in groups] == list(range(len(groups)))
    return log[: len(arms)] if warms_up else log[len(arms) :]


def test_every_group_goes_to_all_arms_in_rotated_order_with_equal_seeds():
    log = run(2)
    assert [name for name, _ in log] == ["off", "sync", "sync", "sync", "sync", "off"]
    assert [job.seeds for _, job in log[:3]] == [
        [0],
        [0],
        None,
    ]  # unseeded: the service's own method
    assert [job.seeds for _, job in log[3:]] == [[1], None, [1]]
    assert all(job.prompts == [[1]] for _, job in log[3:])


def test_nobody_warms_up_on_what_is_measured():
    warm_up, measured = run(3, warms_up=True), run(3)
    assert [name for name, _ in warm_up] == ["off", "sync", "sync"]
    assert all(job.prompts == [[99]] for _, job in warm_up)
    seeds = {seed for _, job in measured for seed in job.seeds or ()}
    assert not seeds & {seed for _, job in warm_up for seed in job.seeds or ()}


@pytest.mark.parametrize(
    ("service", "is_late", "learns"),
    [
        (Service(mode=OFF), False, False),
        (Service(mode="sync", drafter=CHOICES["lm"]), False, False),
        (Service(mode="auto", drafter=CHOICES["lm"]), False, True),
        (Service(mode="async", drafter=CHOICES["lm"]), False, True),
        (Service(mode="async", drafter=CHOICES["lm"], miss_policy="skip"), False, False),
        (Service(mode="auto", drafter=CHOICES["lm"]), True, False),  # the bench has no time left
    ],
    ids=str,
)
def test_who_learns_has_the_time_to(service, is_late, learns):
    log: list[tuple[str, Job]] = []
    plan = msgspec.structs.replace(QUICK, warm_up_s=0.05)
    asking = Interleaved(
        {service: Asked("it", log)}, plan, is_late=lambda: is_late, advance=lambda what: None
    )
    asking._services[service].ask = lambda job: log.append(("it", job)) or time.sleep(0.01)
    asking._warm_up(AT_1, [Arm(service=service)], [[[98]]], first_number=3)
    assert (len(log) > 1) == learns


def test_late_settings_are_cut_short_but_not_left_empty():
    assert len(run(6, is_late=True)) == 2 * 3


def test_greedy_groups_come_from_sound_prompts_where_there_are_enough():
    prompts = [[n] for n in range(20)]
    choice = PromptChoice({"code": prompts}, {"code": prompts[5:17]}, [])
    assert not choice.is_looping("code", 1, FULL)
    assert choice.is_looping("code", 8, FULL)
    assert choice.groups("code", 4, 2, is_sound=True) == [prompts[5:9], prompts[9:13]]
    assert len(choice.groups("code", 4, 100, is_sound=False)) == 5


def test_other_prompts_are_those_that_are_left_or_else_the_same():
    prompts = [[n, n, n + 1] for n in range(20)]
    choice = PromptChoice({"code": prompts}, {"code": prompts[:6]}, [])
    assert choice.others("code", 4, 3, is_sound=False) == [prompts[12:16], prompts[16:]]
    assert choice.others("code", 2, 2, is_sound=True) == [prompts[4:6]]
    assert choice.others("code", 4, 1, is_sound=True) == [prompts[:4]]


BURNS = "import time\nwhile time.process_time() < 0.4: pass\n"


@pytest.mark.slow
def test_processor_time_of_others_is_told_from_ones_own():
    child = subprocess.Popen([sys.executable, "-c", BURNS + "time.sleep(60)"])
    try:
        everyone, ours = ForeignLoad([]), ForeignLoad([child.pid])
        time.sleep(1.0)
        assert everyone.share() - ours.share() > 0.25
    finally:
        child.kill()
        child.wait()


@pytest.mark.slow
def test_what_others_ran_counts_though_they_have_ended():
    parent = f"import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {BURNS!r}])\n"
    parent = subprocess.Popen([sys.executable, "-c", parent + "time.sleep(60)"])
    try:
        everyone, ours = ForeignLoad([]), ForeignLoad([parent.pid])
        time.sleep(1.5)
        assert everyone.share() - ours.share() > 0.15
    finally:
        parent.kill()
        parent.wait()


def test_a_thread_that_ends_takes_nothing_from_what_others_ran():
    """Its nanoseconds vanish from the process's; the ticks of the process keep them."""
    before = _Ran(exact_s=5.0, ticks_s=5.0, children_s=0.0)
    assert _rise(before, _Ran(0.1, 5.02, 0.0)) == pytest.approx(0.02)
    assert _rise(before, _Ran(5.003, 5.0, 0.0)) == pytest.approx(0.003)
    assert _rise(before, _Ran(5.0, 5.0, 0.25)) == 0.25


def test_a_process_that_has_just_ended_ran_nothing():
    child = subprocess.Popen(["true"])
    child.wait()
    assert usage(child.pid).ran_s == 0.0
    assert _rise(_Ran(1.0, 1.0, 1.0), _ran(child.pid)) <= 0.0


@pytest.mark.parametrize(("num_tokens", "longest"), [(200, 400), (20_000, 2048)])
def test_services_have_room_for_the_prompts_and_no_more(num_tokens, longest):
    flags = kv_memory_flags(EMBEDDED_TARGET, 30_000_000, num_tokens)
    parser = argparse.ArgumentParser()
    add_service_options(parser)
    words = ["--target", "tiny", "--ballast", "30M", *flags]
    config = resolve_here(read_config(parser.parse_args(words)))
    assert config.model.max_model_len == longest
    assert config.num_blocks is not None
    assert config.num_blocks * BLOCK_SIZE >= 2 * num_tokens
