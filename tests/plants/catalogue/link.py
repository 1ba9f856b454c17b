"""Bugs of the link between target and draft processes."""

from tests.plants.plant import Plant, Way

_ASYNC = frozenset({Way.ASYNC})
_FRAMES = "tests/specserve/transport/link/test_frames.py"
_RING = "tests/specserve/transport/link/test_ring.py"

PLANTS = [
    Plant(
        name="checksums-that-nobody-compares",
        file="specserve/transport/link/envelope.py",
        symbol="unseal",
        was="if zlib.crc32(view[_CRC.size :]) != _CRC.unpack_from(frame)[0]:",
        becomes="if zlib.crc32(view[_CRC.size :]) < 0:",
        tests=(f"{_FRAMES}::test_no_flipped_bit_goes_unnoticed",),
        breaks="damaged frames are read as if they were sound",
        ways=_ASYNC,
    ),
    Plant(
        name="frames-of-any-epoch",
        file="specserve/transport/link/ends.py",
        symbol="LinkEnd._open",
        was="envelope.epoch != self._epoch or envelope.sequence < self._next_received",
        becomes="envelope.sequence < self._next_received",
        tests=(f"{_RING}::test_frames_of_the_previous_epoch_are_stale",),
        breaks="pushes of a draft process that has died are taken for those of the new one",
        ways=_ASYNC,
    ),
    Plant(
        name="replays-are-taken-again",
        file="specserve/transport/link/ends.py",
        symbol="LinkEnd._open",
        was="self._next_received = envelope.sequence + 1",
        becomes="self._next_received = envelope.sequence",
        tests=(f"{_RING}::test_a_replayed_frame_counts_once",),
        breaks="a push that comes twice is used twice",
        ways=_ASYNC,
    ),
    Plant(
        name="room-without-padding",
        file="specserve/transport/link/ring.py",
        symbol="ByteRing.write",
        was="if used + _record_bytes(num_bytes) > self.capacity:",
        becomes="if used + num_bytes > self.capacity:",
        tests=(f"{_RING}::test_a_ring_is_a_queue_of_bounded_size_at_any_offset",),
        breaks="a full ring overwrites what has not been read",
        ways=_ASYNC,
    ),
    Plant(
        name="records-wrap-one-word-late",
        file="specserve/transport/link/ring.py",
        symbol="ByteRing._put",
        was="self._data[: end - self.capacity] = view[split:]",
        becomes="self._data[8 : 8 + end - self.capacity] = view[split:]",
        tests=(f"{_RING}::test_a_ring_is_a_queue_of_bounded_size_at_any_offset",),
        breaks="whatever wraps round the end of a ring is lost",
        ways=_ASYNC,
    ),
    Plant(
        name="features-counted-with-the-anchor",
        file="specserve/transport/link/report_frames.py",
        symbol="_cut_rows",
        was="feature += num_verified",
        becomes="feature += record.num_ids",
        tests=(f"{_FRAMES}::test_what_is_encoded_is_decoded",),
        breaks="from the second row of a report on, features are those of other tokens",
        ways=_ASYNC,
    ),
    Plant(
        name="blocks-longer-than-their-push-is-wide",
        file="specserve/transport/link/push_frames.py",
        symbol="_check_blocks",
        was='(blocks.lengths, 1, width, "block length out of range"),',
        becomes='(blocks.lengths, 1, limits.gamma, "block length out of range"),',
        tests=(
            f"{_FRAMES}::test_a_push_with_a_field_out_of_range_is_nothing",
            f"{_FRAMES}::test_every_block_of_a_push_is_within_limits",
        ),
        breaks="a push may claim tokens that it does not have",
        ways=_ASYNC,
    ),
    Plant(
        name="rounds-beyond-their-keys",
        file="specserve/transport/link/push_frames.py",
        symbol="_check_blocks",
        was='(blocks.rounds, 0, MAX_ROUND, "round out of range"),',
        becomes='(blocks.rounds, 0, None, "round out of range"),',
        tests=(
            f"{_FRAMES}::test_a_push_with_a_field_out_of_range_is_nothing",
            f"{_FRAMES}::test_every_block_of_a_push_is_within_limits",
        ),
        breaks="a push may name a round that no noise has room for",
        ways=_ASYNC,
    ),
]
