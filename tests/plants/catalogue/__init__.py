"""All planted bugs, by the room of the house that they break."""

from tests.plants.catalogue import (
    asynchronous,
    captured,
    draft_batches,
    drafters,
    drafting,
    kernels,
    link,
    outcomes,
    planning,
    sampling,
    scheduling,
    serving,
    streams,
    training,
    verification,
)

_ROOMS = (
    verification,
    sampling,
    kernels,
    captured,
    scheduling,
    planning,
    serving,
    asynchronous,
    drafting,
    drafters,
    draft_batches,
    streams,
    outcomes,
    link,
    training,
)
PLANTS = [plant for room in _ROOMS for plant in room.PLANTS]
