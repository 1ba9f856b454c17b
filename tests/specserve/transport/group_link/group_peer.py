"""A draft process that does nothing but answer reports: run as a module, killed at any moment.

Arguments: descriptor of the region, folder to meet in, epoch, manner, backend. "echo" answers a
report with the push of the number that it carries as its latency, if its features are those of that
number; "mute" attaches and reads nothing; "rubbish" sends what is no frame before every answer.
Follows the region's word to another epoch.
"""

import os
import sys
import time
from pathlib import Path

import torch

from specserve.transport.group_link.ends import GroupDraftEnd, Meeting
from specserve.transport.group_link.nccl import set_nccl_environment
from specserve.transport.link.ring import SharedRegion
from tests.specserve.transport.group_link.device_messages import is_numbered, pushed
from tests.specserve.transport.group_link.gloo import GlooMeeting
from tests.specserve.transport.link.messages import LIMITS

TIMEOUT_S = 5.0
DEVICES = {"gloo": "cpu", "nccl": "cuda:0"}


def meeting_in(folder: Path, backend: str = "gloo", timeout_s: float = TIMEOUT_S) -> Meeting:
    kind = Meeting if backend == "nccl" else GlooMeeting
    device = torch.device(DEVICES[backend])
    return kind(folder=folder, draft=0, device=device, timeout_s=timeout_s)


def insist(send):
    """A test that compares every frame needs all of them."""
    while not send():
        time.sleep(0.0005)


def main():
    fd, folder, epoch = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    manner, backend = sys.argv[4:]
    set_nccl_environment("draft 0", shares_device=True)
    region = SharedRegion.attach(fd)
    end = GroupDraftEnd(region, LIMITS, meeting_in(folder, backend))
    region.draft_pid, region.draft_epoch, end.epoch = os.getpid(), epoch, epoch
    while manner == "mute":
        time.sleep(1)
    while True:
        end.epoch = region.draft_epoch
        for report in end.receive():
            if manner == "rubbish":
                insist(lambda: end._outgoing.write([b"rubbish", bytes(40)]))
            if not is_numbered(report):
                sys.exit(1)
            push = pushed(int(report.round_latency_s), end.epoch or 0, DEVICES[backend])
            insist(lambda push=push: end.send(push))
        time.sleep(0.0005)


if __name__ == "__main__":
    main()
