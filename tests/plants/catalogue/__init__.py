"""All planted bugs, by the room of the house that they break."""

from tests.plants.catalogue import (
    asynchronous,
    drafters,
    drafting,
    kernels,
    link,
    outcomes,
    recorded,
    streams,
    training,
    waves,
)

PLANTS = [
    *asynchronous.PLANTS,
    *drafting.PLANTS,
    *waves.PLANTS,
    *streams.PLANTS,
    *outcomes.PLANTS,
    *link.PLANTS,
    *drafters.PLANTS,
    *kernels.PLANTS,
    *recorded.PLANTS,
    *training.PLANTS,
]
