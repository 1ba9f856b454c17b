"""Frames over NCCL between two real processes: what is tested over gloo holds on a GPU.

Both share one device here, so that NCCL goes through sockets; the lanes, their streams and their
memory are those of two devices. What is sent starts in the device's memory and lands there, while
the device is busy with other work of the same stream, and nobody waits for it. A peer that stops or
does not read is another matter than over gloo, since NCCL has taken a frame long before the peer
has it; what the service makes of drafts that stop or die is in test_cuda_draft_failure.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specserve.transport.group_link.nccl import set_nccl_environment
from tests.specserve.transport.group_link.device_messages import numbered_report, on_host
from tests.specserve.transport.group_link.group_peer import TIMEOUT_S
from tests.specserve.transport.group_link.test_process_group import (  # noqa: F401
    PROMPT_S,
    Target,
    draft,
    test_a_killed_peer_ends_the_epoch_and_the_next_one_works,
    test_a_peer_that_never_joins_blocks_nobody,
    test_frames_cross_both_ways_in_order,
    test_rubbish_is_counted_and_what_follows_is_sound,
)
from tests.specserve.transport.link.messages import numbered_push, same

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


def test_streams_are_waited_for_and_the_host_is_not(target: Target):
    """What is sent is computed last and overwritten first; what has landed is read much later."""
    device = torch.device("cuda:0")
    work = torch.randn(4096, 4096, device=device)
    with draft(target, 1):
        target.until(lambda: target.end.send(numbered_report(7, device)))
        pushes, sent = [], 1
        torch.cuda.set_sync_debug_mode("error")
        try:
            while len(pushes) < 60:
                for _ in range(20):
                    work = (work @ work).clamp_(-1, 1)
                report = numbered_report(7 * sent + 6, device)  # behind all that, on its stream
                sent += target.end.send(report)
                report.rows[0].features.fill_(-1.0)  # the echo tells whether it came too early
                pushes += target.end.receive()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found = [on_host(push) for push in pushes]
    assert not target.end.is_broken
    for number, push in enumerate(found):
        expected = numbered_push(7 if not number else 7 * number + 6, stream=1)
        assert same(push, expected)
