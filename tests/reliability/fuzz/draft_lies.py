"""Replies that a draft must not send: twenty kinds of garbage, and four of what is out of time.

Most are sealed soundly: a checksum finds what was damaged, not what was meant.
"""

import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from specserve.transport.link.envelope import HEADER_BYTES, MAX_EPOCH, Kind, seal
from specserve.transport.link.frames import LinkLimits
from specserve.transport.link.messages import BlockKey, Push
from specserve.transport.link.push_frames import encode_push
from tests.specserve.transport.link.chaos import Corruptor, restamp

_WIDTH = 3
Liar = Callable[[random.Random, LinkLimits, int, int], bytes]  # epoch, number of the next frame


def sound_push(source: random.Random, limits: LinkLimits) -> Push:
    """Two blocks, of streams that may be there."""
    shape = (2, _WIDTH)
    ids = np.array([[source.randrange(limits.vocab_size) for _ in range(_WIDTH)]] * 2, np.int32)
    return Push(
        keys=[
            BlockKey(source.randrange(50), source.randrange(50), source.randrange(200), number)
            for number in range(2)
        ],
        speculation_ids=[source.randint(1, 2**40), source.randint(1, 2**40)],
        lengths=[_WIDTH, 1],
        token_ids=ids,
        confidences=np.full(shape, 0.5, np.float32),
        kept_ids=np.zeros((*shape, 1), np.int32),
        kept_probs=np.ones((*shape, 1), np.float32),
    )


def sound_frame(source: random.Random, limits: LinkLimits, epoch: int, number: int) -> bytes:
    return b"".join(encode_push(sound_push(source, limits), epoch, number).parts)


def _field(change: Callable[[Push, LinkLimits], dict[str, Any]]) -> Liar:
    """Soundly sealed, but for one field."""

    def lie(source: random.Random, limits: LinkLimits, epoch: int, number: int) -> bytes:
        push = sound_push(source, limits)
        return b"".join(encode_push(replace(push, **change(push, limits)), epoch, number).parts)

    return lie


def _bytes(change: Callable[[Corruptor, bytes], bytes]) -> Liar:
    """A sound frame, damaged."""

    def lie(source: random.Random, limits: LinkLimits, epoch: int, number: int) -> bytes:
        return change(Corruptor(source), sound_frame(source, limits, epoch, number))

    return lie


def _poked(at: int, value: int) -> Callable[[Corruptor, bytes], bytes]:
    """A byte of the header, and a checksum that says it is right."""

    def poke(_: Corruptor, frame: bytes) -> bytes:
        changed = bytearray(frame)
        changed[at] = value
        changed[:4] = struct.pack("<I", zlib.crc32(changed[4:]))
        return bytes(changed)

    return poke


def _sealed_noise(source: random.Random, limits: LinkLimits, epoch: int, number: int) -> bytes:
    return b"".join(seal(Kind.PUSH, epoch, number, [source.randbytes(source.randint(0, 400))]))


def _keyed(**fields: int) -> Liar:
    return _field(lambda push, _: {"keys": [push.keys[0]._replace(**fields), push.keys[1]]})


def _with(array: str, value: float, kind: type = np.int32) -> Liar:
    def change(push: Push, _: LinkLimits) -> dict[str, Any]:
        changed = getattr(push, array).astype(kind)
        changed[0, 0] = value
        return {array: changed}

    return _field(change)


GARBAGE: dict[str, Liar] = {
    "noise": _bytes(lambda corruptor, _: corruptor.noise()),
    "a flipped bit": _bytes(lambda corruptor, frame: corruptor.flipped(frame)),
    "cut": _bytes(lambda corruptor, frame: corruptor.cut(frame)),
    "extended": _bytes(lambda corruptor, frame: corruptor.extended(frame)),
    "gutted": _bytes(lambda corruptor, frame: corruptor.gutted(frame)),
    "only a header": _bytes(lambda _, frame: frame[:HEADER_BYTES]),
    "another magic": _bytes(_poked(4, 0xAA)),
    "another version": _bytes(_poked(6, 0xAA)),
    "another kind": _bytes(_poked(7, Kind.REPORT)),
    "sealed noise": _sealed_noise,
    "too wide": _field(lambda _, limits: {"token_ids": np.zeros((2, limits.gamma + 1), np.int32)}),
    "numbers of another kind": _field(
        lambda push, _: {"confidences": np.zeros((2, 2 * _WIDTH), np.float32)}
    ),
    "a token that there is not": _with("token_ids", 2**31 - 1),
    "a token below 0": _with("token_ids", -1),
    "a confidence that is no number": _with("confidences", np.nan, np.float32),
    "a confidence above 1": _with("confidences", 1.5, np.float32),
    "a length beyond the block": _field(lambda _, __: {"lengths": [_WIDTH + 1, 1]}),
    "a position beyond the context": _keyed(position=2**30),
    "an anchor that there is not": _keyed(anchor_id=2**31 - 1),
    "no number of a block": _field(lambda _, __: {"speculation_ids": [0, 1]}),
}


def _of_epoch(step: Callable[[int], int]) -> Liar:
    def lie(source: random.Random, limits: LinkLimits, epoch: int, number: int) -> bytes:
        return restamp(sound_frame(source, limits, epoch, number), step(epoch))

    return lie


OUT_OF_TIME: dict[str, Liar] = {
    "of the epoch before": _of_epoch(lambda epoch: epoch - 1),
    "of the next epoch": _of_epoch(lambda epoch: epoch + 1),
    "of the last epoch that can be": _of_epoch(lambda _: MAX_EPOCH),
    # Number 0 has been sent before anybody lies.
    "once more": lambda source, limits, epoch, _: sound_frame(source, limits, epoch, 0),
}
