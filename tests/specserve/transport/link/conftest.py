"""One small region, mapped twice, with an end on each."""

import os

import pytest

from specserve.transport.link.ring import RingDraftEnd, RingTargetEnd, SharedRegion
from tests.specserve.transport.link.messages import LIMITS
from tests.specserve.transport.link.scribbling import RING_BYTES


@pytest.fixture
def fd():
    fd = SharedRegion.create(RING_BYTES)
    yield fd
    os.close(fd)


@pytest.fixture
def region(fd):
    region = SharedRegion.attach(fd)
    yield region
    region.close()


@pytest.fixture
def other(fd):
    """The same memory as another process would map it."""
    region = SharedRegion.attach(fd)
    yield region
    region.close()


@pytest.fixture
def ends(region, other):
    target, draft = RingTargetEnd(region, LIMITS), RingDraftEnd(other, LIMITS)
    target.epoch = draft.epoch = 1
    return target, draft
