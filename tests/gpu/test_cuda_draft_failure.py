"""A draft process that dies on a device which it shares with the target: nobody's text changes."""

import signal

import pytest
import torch

from tests.exactness.workload import Outcome, differing, run, seeded_requests
from tests.service.chaos import launched_async, plainly
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


@pytest.fixture(scope="module")
def plain() -> list[Outcome]:
    return plainly(REQUESTS, *EXACT)


@pytest.mark.parametrize("link", ["shm", "nccl"])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_text_is_that_of_plain_decoding(plain: list[Outcome], link: str, signum: int):
    settings = (*EXACT, f"speculation.link={link}", "speculation.drafter=dspark")
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
