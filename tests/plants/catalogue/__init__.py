"""All planted bugs, by the room of the house that they break."""

from tests.plants.catalogue import (
    asynchronous,
    drafting,
    sampling,
    scheduling,
    serving,
    verification,
    waves,
)

PLANTS = [
    *verification.PLANTS,
    *sampling.PLANTS,
    *scheduling.PLANTS,
    *serving.PLANTS,
    *asynchronous.PLANTS,
    *drafting.PLANTS,
    *waves.PLANTS,
]
