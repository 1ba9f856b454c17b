"""A draft process that never comes, or comes made for another target: served, and said so.

Row 8 of tests/reliability/rows.py. A drafter that cannot be this target's is refused by name before
anything starts; what is left are files that changed since, and processes that die.
"""

import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from specserve.client import Client
from tests.reliability.apis import GRPC, HTTP, ask, places_of, probe
from tests.reliability.loop import run
from tests.reliability.measured import measured
from tests.reliability.scale import is_long
from tests.run_first import run_first
from tests.service.chaos import end
from tests.service.draft_watch import eventually
from tests.service.launched import Launched

PAIR = ("--topology", "1+1", "--speculation", "async", "--drafter", "ngram", "--oversubscribe")
FAULTS = {
    "away": "import os, draft_node.start as start\nstart.run_draft = lambda *_: os._exit(3)",
    "misfit": (
        "import draft_node.node as node\nfrom msgspec.structs import replace\n"
        "node.replace = lambda one, **more: replace(one, gamma=one.gamma + 1, **more)"
    ),
}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("state", list(FAULTS) if is_long() else ["misfit"])
def test_a_service_starts_without_a_draft_that_does_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
):
    run_first(monkeypatch, tmp_path, ["specserve.processes.forkserver"], FAULTS[state])
    begin_s = time.monotonic()
    service = Launched(*PAIR)
    try:
        places = places_of(service)
        ready_s = time.monotonic() - begin_s
        metrics = f"{places.http.removesuffix('/v1')}/metrics"

        def is_told() -> bool:
            line = f'draft="0",model_name="specserve-embedded",state="{state}"}} 1.0'
            with urllib.request.urlopen(metrics) as answer:
                return line in answer.read().decode()

        assert eventually(is_told, 10)
        assert run(probe(places, "/readyz")) == (200, "degraded")
        with Client(places.grpc) as client:
            assert client.server_info().state == "degraded"
            assert client.spec_stats().drafts[0].state == state
        for api in (GRPC, HTTP):
            answer = run(ask(api, places, "import", max_tokens=8, ignore_eos=True))
            with measured(8, api) as found:
                found.note(requests=1, ready_s=ready_s)
                found.none(failed=[answer.message] if answer.error else [])
    finally:
        end(service)


def test_a_draft_made_for_another_target_is_refused_by_name():
    """SmolLM2, whose vocabulary is another, for the tiny model."""
    words = [sys.executable, "-m", "specserve", "launch", "--target", "tiny", "--port", "0"]
    ended = subprocess.run(
        [*words, "--topology", "1+1", "--speculation", "async", "--drafter", "smollm2"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "vocab_size: 49152, the target has 4096" in ended.stderr.splitlines()[-1]
