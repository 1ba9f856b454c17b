"""All planted bugs, by the room of the house that they break."""

from tests.plants.catalogue import asynchronous, drafting, waves

PLANTS = [*asynchronous.PLANTS, *drafting.PLANTS, *waves.PLANTS]
