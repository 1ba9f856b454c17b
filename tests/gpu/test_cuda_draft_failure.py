"""A draft process that dies on a device which it shares with the target: nobody's text changes.

Under MPS its death may end the target, too: then there is an error, and still no wrong text.
"""

import shutil
import signal
from collections.abc import Callable

import grpc
import pytest
import torch

from specserve.errors import SpecserveError
from specserve.processes.mps import CONTROL
from tests.exactness.workload import Outcome, differing, run, seeded_requests
from tests.service.chaos import launch_async, launched_async, plainly
from tests.service.draft_watch import DraftWatch
from tests.service.test_group_link import strike

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

BACK_S = 30.0
REQUESTS = seeded_requests(24, seed=12)
EXACT = (
    "topology.device=cuda",
    "model.dtype=float32",
    "engine.deterministic=true",
    "engine.kv_memory=256MiB",
)
BY_TURNS, SIDE_BY_SIDE = "topology.mps=false", "topology.mps=true"


@pytest.fixture(scope="module")
def plain() -> list[Outcome]:
    return plainly(REQUESTS, *EXACT)


@pytest.mark.parametrize("link", ["shm", "nccl"])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_text_is_that_of_plain_decoding(plain: list[Outcome], link: str, signum: int):
    settings = (*EXACT, BY_TURNS, f"speculation.link={link}", "speculation.drafter=dspark")
    with launched_async(*settings) as service:
        address = service.address()
        watch = DraftWatch(address)
        num_bytes = []
        try:
            for life in range(2):
                assert watch.wait_until_serving(BACK_S)
                found = run(address, REQUESTS, concurrency=8, shuffle_seed=life)
                assert differing(plain, found) == []
                num_bytes.append(watch.statistics().bytes_received)
                strike(service, signum)
                found = run(address, REQUESTS[:8], concurrency=8)
                assert differing(plain[:8], found) == []
        finally:
            watch.close()
    assert 0 < num_bytes[0] < num_bytes[1]


@pytest.mark.skipif(shutil.which(CONTROL) is None, reason=f"needs {CONTROL}")
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_side_by_side_there_is_the_same_text_or_an_error(
    plain: list[Outcome], signum: int, record_property: Callable[[str, object], None]
):
    """Which of both it is, is in pytest's XML."""
    service = launch_async("1+1", *EXACT, SIDE_BY_SIDE, "speculation.drafter=dspark")
    try:
        address = service.address()
        assert differing(plain, run(address, REQUESTS, concurrency=8)) == []
        strike(service, signum)
        try:
            found = run(address, REQUESTS, concurrency=8)
        except (SpecserveError, grpc.RpcError) as error:
            record_property("the service ended", str(error))
        else:
            assert differing(plain, found) == []
    finally:
        service.process.send_signal(signal.SIGTERM)
        service.exit_code(150)  # a hang of the target is ended by engine.hang_timeout_s
        assert service.process.stdout
        service.process.stdout.close()
