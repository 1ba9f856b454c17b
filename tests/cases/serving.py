"""Services that cases are put to: real processes, asked over both APIs."""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from specserve.client import Client
from tests.cases.apis import GRPC, Service, ask
from tests.service.test_failures import Launched

SYNC, ASYNC = "sync", "async"
REGIMES = (SYNC, ASYNC)
# Whatever drafts cost: before so small a target few pay, and a case needs them.
_DRAFTING = ("--min-survival", "0")
PAIR = ("--topology", "1+1", "--speculation", "async", "--miss-policy", "draft_now", *_DRAFTING)
# With little memory, so that rows are preempted, and with chunks, so that prompts take rounds.
NUM_BLOCKS, CHUNK = 64, 128  # blocks of 16 tokens
_TIGHT = ("--kv-memory", "5MiB", "--max-batch-tokens", str(CHUNK))
FLAGS = {
    SYNC: ("--speculation", "sync", "--drafter", "dspark", *_DRAFTING, *_TIGHT),
    ASYNC: (*PAIR, *_TIGHT),
}
_OWN = ("--http-port", "0", "--oversubscribe", "--parent-pid", str(os.getpid()))
_IDLE_S = 30.0


@contextmanager
def serving(*flags: str) -> Iterator[Service]:
    """A service of the tiny model, or of another that `flags` name, ready to draft."""
    with serving_all({"": flags}) as services:
        yield services[""]


@contextmanager
def serving_all(flags: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Service]]:
    """Services by name, which start and end side by side."""
    launched = {name: Launched(*_OWN, *words) for name, words in flags.items()}
    with ExitStack() as stack:
        try:
            yield {name: _reached(each, stack) for name, each in launched.items()}
        finally:
            for each in launched.values():
                each.process.terminate()
            codes = {name: each.exit_code(90) for name, each in launched.items()}
            for each in launched.values():
                assert each.process.stdout
                each.process.stdout.close()
    assert set(codes.values()) == {0}, codes


def _reached(launched: Launched, stack: ExitStack) -> Service:
    client = stack.enter_context(Client(launched.address()))
    found = re.search(r"OpenAI-compatible API at http://127.0.0.1:(\d+)", launched.output)
    assert found, launched.output
    _await_drafts(client)
    return Service(client, int(found[1]), tuple(client.model_info().eos_token_ids))


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
