"""How ranks and draft processes start on CUDA: placement, dtype, memory, drafters, warm-up."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import msgspec
import pytest
import torch

import draft_node.start
import specserve.processes.launch
import target_node.meeting
import target_node.planning.step_profile
import target_node.speculation.start
import target_node.start
from specserve.backends.cuda.backend import CudaGraphBackend
from specserve.backends.cuda.block_passes import CapturedBlockPasses
from specserve.backends.cuda.forward import CapturedForward
from specserve.backends.torch.backend import TorchBackend
from specserve.drafters.block_drafter import BlockDrafter
from specserve.errors import Exhausted
from specserve.processes.process import ChildArguments
from specserve.settings.config import ResolvedConfig, load_config
from specserve.settings.hardware import CudaDevice, Hardware, probe
from specserve.settings.step_files import StepFile
from specserve.transport.link.ring import SharedRegion
from specserve.types import RequestEnd, Submit, Terminal
from target_node.node import TargetNode
from target_node.planning.policies import ThresholdPolicy
from target_node.speculation.asynchronous import AsynchronousSpeculation
from target_node.speculation.auto import AutoSpeculation
from target_node.speculation.miss_policy import Miss
from tests.device import pretended
from tests.device.pretended import PretendedCuda
from tests.device.workload import both_kinds
from tests.specserve.drafters.made_for_embedded import write_dels, write_dflash
from tests.target_node.in_process import ScriptedControl
from tests.target_node.planning.known import now

MADE = {"dflash": write_dflash, "dels": write_dels}  # others come with the embedded target
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("dflash", "dels", "lm", "ngram")]


def speculation_with(name: str, folder: Path) -> dict[str, str]:
    return MADE[name](folder) if name in MADE else {"drafter": name}


def resolved(topology: str = "1+0", *, num_devices: int = 2, **speculation: str) -> ResolvedConfig:
    """As `launch --device cuda --oversubscribe` resolves it on a machine with so many devices."""
    devices = [CudaDevice(index=i, name="pretended", memory=1 << 30) for i in range(num_devices)]
    hardware = Hardware(
        cores=(0, 1), cpu_name="any", available_memory=1 << 36, cuda_devices=tuple(devices)
    )
    keys = {"topology.topology": topology, "topology.device": "cuda", "model.max_model_len": "256"}
    keys |= {"topology.oversubscribe": "true", "model.target": "tiny"}
    if not topology.endswith("+0"):
        keys["speculation.link"] = "shm"  # for torch on a CPU has no NCCL
    keys |= {f"speculation.{key}": value for key, value in speculation.items()}
    with mock.patch.object(specserve.processes.launch, "probe", return_value=hardware):
        return specserve.processes.launch.resolve_here(load_config(None, keys))


@pytest.fixture(autouse=True)
def _environment_as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECSERVE_CACHE", str(tmp_path / "cache"))  # nothing was measured before
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_HOSTID"):
        monkeypatch.setenv(name, "")  # so that what is set here is taken back
        monkeypatch.delenv(name)


def arguments(folder: Path, *link_fds: int) -> ChildArguments:
    return ChildArguments(
        config=folder, control_dir=folder, ready_fd=-1, parent_pid=os.getpid(), link_fds=link_fds
    )


def leader(config: ResolvedConfig, given: ChildArguments) -> TargetNode:
    with (
        mock.patch.object(target_node.start, "TargetControl", return_value=ScriptedControl()),
        mock.patch.object(target_node.speculation.start, "DraftControlTarget", mock.MagicMock()),
        mock.patch.object(target_node.start, "signal", mock.MagicMock()),
        mock.patch.object(target_node.start, "watch") as watch,
        # A pretended forward is slow, and how slow the machine's business: the same ones anywhere.
        mock.patch.object(target_node.planning.step_profile, "_SIZES", (1, 2, 4, 8)),
        mock.patch.object(CudaGraphBackend, "step_edges", return_value=(1, 2, 4, 8)),
        mock.patch.object(target_node.planning.step_profile, "_MOST_S", float("inf")),
    ):
        ranks, runner = target_node.start._build(config, given)
        node = target_node.start._leader(config, given, ranks, runner)
        target_node.start._begin_to_lead(node, config, given, StepFile(config, probe()))
        look_at_progress, *_ = watch.call_args.args
        assert look_at_progress() >= 1 + 3 * 4  # forwards: one, and three of each size
        return node


@contextmanager
def shared_memory() -> Iterator[tuple[int, SharedRegion]]:
    fd = SharedRegion.create()
    region = SharedRegion.attach(fd)
    try:
        yield fd, region
    finally:
        region.close()
        os.close(fd)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dspark", *SLOW])
def test_a_leader_serves_with_every_kind_of_drafter(cuda: PretendedCuda, tmp_path: Path, name: str):
    config = resolved(mode="sync", **speculation_with(name, tmp_path))
    node = leader(config, arguments(tmp_path))
    assert isinstance(node.control, ScriptedControl)
    assert node.runner.model.embedding.device == torch.device("cuda", 0)
    prices = node.speculation._admission._prices
    prices.begin(2)
    assert now(prices).tokens_per_s > 0  # before the first round
    node.speculation._admission._budget = ThresholdPolicy()  # whatever pretended forwards take
    assert not config.engine.deterministic
    node.control.inbox += [Submit(request) for request in both_kinds()[::2]]
    for _ in range(200):
        node.turn()
        if not node.num_requests and not node.control.inbox:
            break
    ends = [message for message in node.control.sent if isinstance(message, RequestEnd)]
    assert [end.terminal for end in ends] == [Terminal.FINISHED] * 4
    assert name == "ngram" or node._load._num_drafts > 5


def test_the_pool_is_a_share_of_the_memory_that_is_free(cuda: PretendedCuda, tmp_path: Path):
    config = resolved(mode="off")
    assert config.num_blocks is None
    _, runner = target_node.start._build(config, arguments(tmp_path))
    cache = runner.cache
    num_bytes = cache.keys.nbytes + cache.values.nbytes
    share = num_bytes / pretended.FREE_BYTES
    assert 0.8 < share <= target_node.start.CUDA_MEMORY_SHARE
    with (
        mock.patch.object(torch.cuda, "mem_get_info", return_value=(1000, 1000)),
        pytest.raises(Exhausted, match="1000 bytes free after the weights hold no KV block"),
    ):
        target_node.start._build(config, arguments(tmp_path))


def test_positions_that_only_the_config_claims_take_no_memory(cuda: PretendedCuda, tmp_path: Path):
    config = resolved(mode="off")
    _, runner = target_node.start._build(config, arguments(tmp_path))
    assert runner.model.num_positions == config.model.max_model_len == 256
    assert runner.model.config.max_position_embeddings > 256


def test_processes_that_share_a_device_share_its_memory(cuda: PretendedCuda, tmp_path: Path):
    alone, together = (resolved("1+1", num_devices=n, mode="async") for n in (2, 1))
    assert (alone.oversubscribed, together.oversubscribed) == (False, True)
    sizes = []
    for config in (alone, together):
        _, runner = target_node.start._build(config, arguments(tmp_path))
        drafter = Path(config.speculation.drafter or "")
        backend = TorchBackend(torch.device(config.placement("draft").device))
        sizes.append(
            (
                runner.cache.num_blocks,
                draft_node.start._num_context_tokens(config, drafter, 1 << 20, backend),
            )
        )
    for whole, half in zip(*sizes, strict=True):
        assert whole // 2 - 1 <= half <= whole // 2


def with_graphs(config: ResolvedConfig, wish: bool | None) -> ResolvedConfig:
    """None: as it was resolved."""
    assert config.engine.cuda_graphs
    if wish is None:
        return config
    engine = msgspec.structs.replace(config.engine, cuda_graphs=wish)
    return msgspec.structs.replace(config, engine=engine)


def test_drafters_by_default_are_those_whose_passes_are_captured():
    names = [
        Path(folder or "").name
        for mode in ("sync", "auto", "async")
        for found in [resolved("1+0" if mode == "sync" else "1+1", mode=mode).speculation]
        for folder in (found.drafter, found.colocated_drafter)
    ]
    assert names == ["dspark", "", "dspark", "dspark", "dspark", "dspark"]


@pytest.mark.slow
@pytest.mark.parametrize("wish", [None, False])
def test_forwards_of_a_leader_are_captured(cuda: PretendedCuda, tmp_path: Path, wish: bool | None):
    node = leader(with_graphs(resolved(mode="sync"), wish), arguments(tmp_path))
    passes = node.runner.passes
    assert isinstance(passes, CapturedForward) is (wish is None)
    if isinstance(passes, CapturedForward):
        assert passes.num_graphs > 3  # of the sizes that were timed


@pytest.mark.slow
@pytest.mark.parametrize("wish", [None, False])
def test_passes_of_a_draft_process_are_captured(
    cuda: PretendedCuda, tmp_path: Path, wish: bool | None
):
    config = with_graphs(resolved("1+1", mode="async", drafter="dspark"), wish)
    with shared_memory() as (fd, region):
        node = draft_node.start._build(config, arguments(tmp_path, fd), region, mock.Mock())
        drafter = node.prespeculation._drafter
        assert isinstance(drafter, BlockDrafter)
        assert isinstance(drafter._passes, CapturedBlockPasses) is (wish is None)


@pytest.mark.parametrize(
    ("num_devices", "backend"), [(2, "cpu:gloo,cuda:nccl"), (1, "gloo")], ids=["own", "shared"]
)
def test_ranks_talk_over_nccl_unless_they_share_a_device(
    tmp_path: Path, num_devices: int, backend: str
):
    config = resolved("2+0", num_devices=num_devices, mode="off")
    given = msgspec.structs.replace(arguments(tmp_path), rank=1, world_size=2)
    with mock.patch.object(target_node.meeting.dist, "init_process_group") as joined:
        target_node.meeting.join_group(config, given)
    assert joined.call_args.args == (backend,)


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [2, 1])
def test_processes_that_share_a_device_are_hosts_of_their_own_to_nccl(
    cuda: PretendedCuda, tmp_path: Path, num_devices: int
):
    config = resolved("1+1", num_devices=num_devices, mode="async")
    names = []
    with shared_memory() as (fd, region):
        for build in (
            lambda given: target_node.start._build(config, given),
            lambda given: draft_node.start._build(config, given, region, mock.MagicMock()),
        ):
            build(arguments(tmp_path, fd))
            assert os.environ["NCCL_SOCKET_IFNAME"] == "lo"
            names.append(os.environ.pop("NCCL_HOSTID", None))
    assert (None in names) == (num_devices == 2)
    assert len(set(names)) == (1 if num_devices == 2 else 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "modes", "local"),
    [
        ({}, ["off", "sync", "local_draft", "draft_now", "skip"], {Miss.LOCAL_DRAFT}),
        (
            {"mode": "async"},
            ["local_draft", "ngram", "draft_now", "skip"],
            {Miss.LOCAL_DRAFT, Miss.NGRAM},
        ),
        ({"miss_policy": "ngram"}, ["off", "sync", "ngram"], {Miss.NGRAM}),
        ({"miss_policy": "draft_now"}, ["off", "sync", "draft_now"], set()),
        ({"colocated_drafter": None}, ["off", "draft_now", "skip"], set()),
    ],
    ids=["usual", "async", "own text", "wait", "no drafter here"],
)
def test_a_leader_with_draft_processes_starts(
    cuda: PretendedCuda, tmp_path: Path, changes: dict[str, str], modes: list[str], local: set
):
    config = resolved("1+1", mode="auto")
    speculation = msgspec.structs.replace(config.speculation, **changes)
    config = msgspec.structs.replace(config, speculation=speculation)
    with shared_memory() as (fd, _):
        node = leader(config, arguments(tmp_path, fd))
        node.turn()
        assert node.speculation.status().num_draft_processes == 1
        assert isinstance(node.speculation, AutoSpeculation)
        found = node.speculation._modes
        assert [name.removeprefix("async ") for name in found] == modes
        (asynchronous,) = {found[name] for name in found if name.startswith("async")}
        assert isinstance(asynchronous, AsynchronousSpeculation)
        assert set(asynchronous._local.kinds) == local  # nothing is loaded that nobody asks
        assert node.speculation._policy is asynchronous.policy
        assert all(name == f"async {miss}" for name, miss in node.speculation._misses.items())
        node.speculation.close()


@pytest.mark.slow
@pytest.mark.parametrize("miss", Miss)
def test_async_with_one_thing_to_do_about_misses_has_nothing_to_choose(
    cuda: PretendedCuda, tmp_path: Path, miss: Miss
):
    config = resolved("1+1", mode="async", miss_policy=str(miss))
    with shared_memory() as (fd, _):
        source = leader(config, arguments(tmp_path, fd)).speculation
        assert isinstance(source, AsynchronousSpeculation)
        assert source.policy.choose() is miss
        assert source.policy.max_wait_s == pytest.approx(0.05)
        with mock.patch.object(source.links, "close") as closed:
            source.close()
        closed.assert_called_once()
        source.links.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dspark", *SLOW])
def test_a_draft_process_starts_on_a_device_of_its_own(
    cuda: PretendedCuda, tmp_path: Path, name: str
):
    drafter = speculation_with(name, tmp_path)["drafter"]
    config = resolved("1+1", mode="async", drafter=drafter)
    with shared_memory() as (fd, region):
        node = draft_node.start._build(config, arguments(tmp_path, fd), region, mock.Mock())
        drafter = node.prespeculation._drafter
        assert drafter.gamma > 0
        if name != "ngram":
            assert drafter.context.cache.device == torch.device("cuda", 1)
    assert not cuda.mixes


def test_a_draft_process_without_weights_is_warm_when_it_is_ready(
    cuda: PretendedCuda, tmp_path: Path
):
    """Its first call on a device takes a while."""
    config = resolved("1+1", mode="async", drafter="ngram")
    with shared_memory() as (fd, region):
        draft_node.start._build(config, arguments(tmp_path, fd), region, mock.Mock())
    assert cuda.num_operations > 0
