"""Frames over NCCL between two real processes: what is tested over gloo holds on a GPU.

Both share one device here, so that NCCL goes through sockets; the lanes, their streams and their
memory are those of two devices. A peer that stops or does not read is another matter than over
gloo, since NCCL has taken a frame long before the peer has it; what the service makes of drafts
that stop or die is in test_cuda_draft_failure.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specserve.transport.group_link.nccl import set_nccl_environment
from tests.specserve.transport.group_link.group_peer import TIMEOUT_S
from tests.specserve.transport.group_link.test_process_group import (  # noqa: F401
    PROMPT_S,
    Target,
    test_a_killed_peer_ends_the_epoch_and_the_next_one_works,
    test_a_peer_that_never_joins_blocks_nobody,
    test_frames_cross_both_ways_in_order,
    test_rubbish_is_counted_and_what_follows_is_sound,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def _a_host_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_SOCKET_IFNAME", "NCCL_HOSTID"):
        monkeypatch.setenv(name, "")  # so that what is set here is taken back
        monkeypatch.delenv(name)
    set_nccl_environment("target 0", shares_device=True)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    made = Target(tmp_path, TIMEOUT_S, "nccl")
    yield made
    made.close()
    assert made.longest_s < PROMPT_S
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith(("link", "nccl"))
    ]
