"""Services that cases are put to: real processes, asked over both APIs."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from specserve.client import Client
from tests.cases.apis import GRPC, Service, ask
from tests.service.chaos import end
from tests.service.test_failures import Launched

SYNC, ASYNC = "sync", "async"
REGIMES = (SYNC, ASYNC)
# Whatever drafts cost: before so small a target few pay, and a case needs them.
_DRAFTING = ("--min-survival", "0")
PAIR = ("--topology", "1+1", "--speculation", "async", "--miss-policy", "draft_now", *_DRAFTING)
NUM_BLOCKS = 64  # of 16 tokens, of the asynchronous service
FLAGS = {
    SYNC: ("--speculation", "sync", "--drafter", "dspark", *_DRAFTING),
    # With little memory, so that rows are preempted, and with chunks, so that prompts take rounds.
    ASYNC: (*PAIR, "--kv-memory", "5MiB", "--max-batch-tokens", "128"),
}
_OWN = ("--http-port", "0", "--oversubscribe", "--parent-pid", str(os.getpid()))
_IDLE_S = 30.0


@contextmanager
def serving(*flags: str) -> Iterator[Service]:
    """A service of the tiny model, or of another that `flags` name, ready to draft."""
    launched = Launched(*_OWN, *flags)
    try:
        with Client(launched.address()) as client:
            found = re.search(r"OpenAI-compatible API at http://127.0.0.1:(\d+)", launched.output)
            assert found, launched.output
            _await_drafts(client)
            yield Service(client, int(found[1]))
    finally:
        end(launched)


def _await_drafts(client: Client) -> None:
    deadline_s = time.monotonic() + _IDLE_S
    while (load := client.load()).num_drafts_attached < load.num_draft_processes:
        assert time.monotonic() < deadline_s, load
        time.sleep(0.05)


def assert_healthy(service: Service) -> None:
    """The next request is served, and nothing is left of those before it."""
    answer = ask(GRPC, service, "import", temperature=0, max_tokens=4, ignore_eos=True)
    assert answer.num_generated_tokens == 4
    deadline_s = time.monotonic() + _IDLE_S
    while (load := service.client.load()).num_in_flight or load.num_running or load.num_waiting:
        assert time.monotonic() < deadline_s, load
        time.sleep(0.05)
    assert load.num_free_blocks == load.num_blocks
