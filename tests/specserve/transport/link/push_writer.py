"""A draft process that does nothing but push: run as a module, killed at any moment.

Arguments: descriptor of the region, epoch, which is also the stream of its pushes, how many (0: for
ever), distribution entries a token.
"""

import os
import sys
import time

from specserve.transport.link.ring import RingDraftEnd, SharedRegion
from tests.specserve.transport.link.messages import LIMITS, numbered_push


def main():
    fd, epoch, count, num_kept = map(int, sys.argv[1:])
    region = SharedRegion.attach(fd)
    end = RingDraftEnd(region, LIMITS)
    region.draft_pid, region.draft_epoch, end.epoch = os.getpid(), epoch, epoch
    number = 0
    while not count or number < count:
        region.heartbeat_ns = time.monotonic_ns()
        if end.send(numbered_push(number, stream=epoch, num_kept=num_kept)):
            number += 1
        else:
            time.sleep(0.0002)
    region.close()


if __name__ == "__main__":
    main()
