"""`launch --device cuda` end to end over gRPC: the first thing to run on a machine with a GPU."""

import shutil
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import torch

from specserve.api.grpc_gen import generation_pb2 as pb
from specserve.api.grpc_gen import generation_pb2_grpc as stubs
from specserve.cli import main
from specserve.client import Client
from specserve.processes.mps import CONTROL
from tests.exactness.workload import MAX_MODEL_LEN, differing, run, seeded_requests
from tests.run_first import run_first
from tests.specserve.drafters.made_for_embedded import write_dels, write_dflash

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = ("--device", "cuda", "--max-model-len", str(MAX_MODEL_LEN))
SMALL = (*CUDA, "--kv-memory", "256MiB")
# Texts are a property of seeds alone only where arithmetic is deterministic.
EXACT = (*SMALL, "--dtype", "float32", "--deterministic")
NCCL_ON_ONE_DEVICE = """
from specserve.settings import resolve
resolve.resolve_collectives = lambda device, *, shares_devices: "nccl"
"""
MADE = {"dflash": write_dflash, "dels": write_dels}  # others come with the embedded target


@pytest.fixture(scope="module")
def plain(request: pytest.FixtureRequest) -> list:
    """Forty requests decoded plainly on one device."""
    from tests.conftest import _service

    with _service((*EXACT, "--speculation", "off")) as address:
        return run(address, seeded_requests(40), concurrency=8)


def model_info(address: str) -> pb.GetModelInfoResponse:
    with grpc.insecure_channel(address) as channel:
        return stubs.ControlStub(channel).GetModelInfo(pb.GetModelInfoRequest())


def bytes_received(address: str) -> int:
    """From draft processes, so far."""
    with grpc.insecure_channel(address) as channel:
        watch = stubs.SpecInfoStub(channel).WatchSpecStats(pb.WatchSpecStatsRequest(interval_s=0.3))
        found = next(watch).bytes_received
        watch.cancel()
    return found


@pytest.mark.parametrize("mode", ["off", "sync", "auto"])
def test_a_service_with_default_dtype_and_measured_memory(
    start_service: Callable[..., str], mode: str
):
    address = start_service(*CUDA, "--speculation", mode)
    assert model_info(address).device == "cuda:0"
    with Client(address) as client:
        answer = client.generate("def add(a, b):", temperature=0, max_tokens=24, ignore_eos=True)
    assert len(answer.samples[0].token_ids) == 24


@pytest.mark.parametrize("name", ["dspark", "lm", "ngram", *MADE])
@pytest.mark.parametrize("method", ["coupled", "foreseeable"])
def test_every_kind_of_drafter_beside_the_target(
    start_service: Callable[..., str], plain: list, tmp_path: Path, name: str, method: str
):
    settings = MADE[name](tmp_path) if name in MADE else {"drafter": name}
    flags = ["--speculation", "sync", "--verification", method]
    for key, value in settings.items():
        flags += ["--set", f"speculation.{key}={value}"]
    address = start_service(*EXACT, *flags)
    assert differing(plain, run(address, seeded_requests(40), concurrency=8, shuffle_seed=1)) == []


@pytest.mark.parametrize(
    ("drafter", "link"), [("dspark", "shm"), ("lm", "shm"), ("ngram", "shm"), ("dspark", "nccl")]
)
def test_a_draft_process_on_the_same_device(
    start_service: Callable[..., str], plain: list, drafter: str, link: str
):
    flags = ("--topology", "1+1", "--oversubscribe", "--speculation", "async", "--link", link)
    address = start_service(*EXACT, *flags, "--drafter", drafter)
    assert differing(plain, run(address, seeded_requests(40), concurrency=8, shuffle_seed=2)) == []
    assert bytes_received(address) > 0


@pytest.fixture
def nccl_on_one_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ranks that share a device meet over NCCL, which is for ranks with one each."""
    run_first(monkeypatch, tmp_path, ["specserve"], NCCL_ON_ONE_DEVICE)


@pytest.mark.parametrize("collectives", ["gloo", "nccl"])
def test_two_ranks_on_the_same_device(
    request: pytest.FixtureRequest,
    start_service: Callable[..., str],
    plain: list,
    collectives: str,
):
    if collectives == "nccl":
        request.getfixturevalue("nccl_on_one_device")
    flags = ("--topology", "2+0", "--oversubscribe")
    address = start_service(*EXACT, *flags, "--speculation", "off")
    assert model_info(address).tensor_parallel == 2
    assert differing(plain, run(address, seeded_requests(40), concurrency=8)) == []


@pytest.mark.usefixtures("nccl_on_one_device")
def test_everything_over_nccl_on_the_same_device(start_service: Callable[..., str], plain: list):
    """Ranks and a draft process: groups of the target and of the link in one process."""
    flags = ("--topology", "2+1", "--oversubscribe", "--link", "nccl")
    address = start_service(*EXACT, *flags, "--speculation", "async", "--drafter", "dspark")
    assert differing(plain, run(address, seeded_requests(40), concurrency=8, shuffle_seed=4)) == []
    assert bytes_received(address) > 0


def test_processes_that_share_a_device_share_its_memory(start_service: Callable[..., str]):
    """Each measures what is free while the other takes its part."""
    flags = ("--topology", "1+1", "--oversubscribe", "--speculation", "async")
    address = start_service(*CUDA, *flags)
    with Client(address) as client:
        answer = client.generate("def add(a, b):", temperature=0, max_tokens=24, ignore_eos=True)
    assert len(answer.samples[0].token_ids) == 24


def test_the_audit_passes():
    flags = ("--device", "cuda", "--dtype", "float32", "--deterministic", "--drafter", "dspark")
    assert main(["audit", "--quick", *flags]) == 0


@pytest.mark.skipif(shutil.which(CONTROL) is None, reason=f"needs {CONTROL}")
@pytest.mark.parametrize("drafter", ["dspark", "lm"])
def test_a_draft_process_side_by_side_on_the_same_device(
    start_service: Callable[..., str], plain: list, drafter: str
):
    """`--mps`: a launch that cannot have it is refused, and says why."""
    flags = ("--topology", "1+1", "--oversubscribe", "--mps", "--speculation", "async")
    address = start_service(*EXACT, *flags, "--drafter", drafter)
    assert differing(plain, run(address, seeded_requests(40), concurrency=8, shuffle_seed=5)) == []
    assert bytes_received(address) > 0


@pytest.mark.parametrize("method", ["rejection", "foreseeable"])
def test_the_audit_passes_with_distributions_that_land_on_the_device(method: str):
    flags = ("--device", "cuda", "--dtype", "float32", "--deterministic", "--drafter", "dspark")
    pair = ("--topology", "1+1", "--oversubscribe", "--speculation", "async", "--link", "nccl")
    assert main(["audit", "--quick", *flags, *pair, "--verification", method]) == 0


@pytest.mark.multigpu
@pytest.mark.parametrize("link", [None, "shm"])
def test_a_draft_process_on_a_device_of_its_own(
    start_service: Callable[..., str], plain: list, link: str | None
):
    """By default over NCCL."""
    flags = ("--topology", "1+1", "--speculation", "async", *(["--link", link] if link else []))
    address = start_service(*EXACT, *flags)
    assert differing(plain, run(address, seeded_requests(40), concurrency=8, shuffle_seed=3)) == []
    assert bytes_received(address) > 0


@pytest.mark.multigpu
def test_two_ranks_over_nccl(start_service: Callable[..., str], plain: list):
    address = start_service(*EXACT, "--topology", "2+0", "--speculation", "off")
    assert model_info(address).tensor_parallel == 2
    assert differing(plain, run(address, seeded_requests(40), concurrency=8)) == []
