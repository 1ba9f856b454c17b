"""Where things lie in a region, for a stranger who writes through the descriptor."""

import os
import struct

RING_BYTES = 4096
AT_HEAD, AT_TAIL = 48 * 8, 56 * 8  # of the ring to the target


def poke(fd, at, word):
    os.pwrite(fd, struct.pack("<Q", word % 2**64), at)
