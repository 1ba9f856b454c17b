"""A pool of nine KV blocks: rows give way to each other, and say what they would have said alone.

Row 18 of tests/reliability/rows.py.
"""

import time

import pytest

from specserve.client import Client
from tests.reliability.apis import GRPC, HTTP, Places, apis, ask, places_of
from tests.reliability.loop import run
from tests.reliability.measured import measured
from tests.reliability.scale import scaled
from tests.reliability.streams import ask_all, plainly, seeded
from tests.service.chaos import end
from tests.service.launched import Launched

pytestmark = pytest.mark.slow

NINE_BLOCKS = "720KiB"  # of the tiny model: 144 tokens
SMALL = seeded(scaled(240, 24), seed=5)


@pytest.mark.parametrize("api", apis(HTTP))
def test_nine_blocks_give_the_same_texts_by_giving_way(service: str, api: str):
    plain = plainly(GRPC, Places(service, ""), SMALL)
    small = Launched("--kv-memory", NINE_BLOCKS, "--oversubscribe", "--speculation", "off")
    try:
        places = places_of(small)
        with Client(places.grpc) as client:
            assert client.load().num_blocks == 9
            begin_s = time.monotonic()
            answers = run(ask_all(api, places, SMALL, concurrency=12))
            took_s = time.monotonic() - begin_s
            num_preemptions = client.load().num_preemptions
        too_long = run(ask(api, places, "word " * 200, max_tokens=8))
    finally:
        end(small)
    with measured(18, api) as found:
        found.note(requests=len(answers), took_s=took_s)
        found.none(failed=[each.message for each in answers if each.error])
        found.none(wrong=[i for i, a in enumerate(answers) if a.said != plain[i].said])
        found.at_least(1, preemptions=num_preemptions)
        assert too_long.error == "INVALID_ARGUMENT", too_long
