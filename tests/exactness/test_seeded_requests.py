"""The same seeded requests give identical tokens, texts and log probabilities, bit for bit,
whatever shares their batches, however prompts are chunked and blocks run out, and on how many
ranks the target runs. The reference is every request alone on `1+0`.
"""

import time
from collections.abc import Callable

import pytest

from specserve.api.info import ServerLoad
from specserve.backends.cpu.parts import can_halve_exactly
from specserve.client import Client
from tests.exactness.workload import (
    MAX_MODEL_LEN,
    Outcome,
    differing,
    run,
    seeded_requests,
    varied,
)
from tests.reliability.scale import is_long

REQUESTS = varied(seeded_requests(200))[: 200 if is_long() else 120]
# Of services of their own, and of those that are one of several.
MANY, FEW = (REQUESTS, REQUESTS[:100]) if is_long() else (REQUESTS[:80], REQUESTS[:40])
LIMIT = ("--max-model-len", str(MAX_MODEL_LEN))
# Speculation and topology of services that have to answer as one that is plain.
TWO_RANKS, SYNC, ASYNC = ("off", "--topology", "2+0"), ("sync",), ("async", "--topology", "1+1")


def idle_load(client: Client) -> ServerLoad:
    """The load once nothing runs; it is published a few times a second."""
    for _ in range(100):
        load = client.load()
        if load.num_running == load.num_waiting == 0:
            return load
        time.sleep(0.1)
    raise AssertionError(f"still busy: {load}")


@pytest.fixture(scope="module")
def alone(service: str) -> list[Outcome]:
    """Every request with nobody beside it."""
    return run(service, REQUESTS, concurrency=1)


@pytest.mark.slow
def test_a_few_requests_are_equal_alone_and_together(service: str):
    requests = seeded_requests(24, seed=1)
    reference = run(service, requests, concurrency=1)
    together = run(service, requests, concurrency=24, shuffle_seed=2)
    assert differing(reference, together) == []
    assert sum(len(tokens) for outcome in reference for tokens in outcome.token_ids) > 200


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [8, 32])
@pytest.mark.parametrize("shuffle_seed", [None, 7])
def test_equal_in_batches_and_shuffled(
    service: str, alone: list[Outcome], concurrency: int, shuffle_seed: int | None
):
    together = run(service, REQUESTS, concurrency=concurrency, shuffle_seed=shuffle_seed)
    assert differing(alone, together) == []


def differing_in_many(alone: list[Outcome], address: str, *, concurrency: int, shuffle_seed: int):
    found = run(address, MANY, concurrency=concurrency, shuffle_seed=shuffle_seed)
    return differing(alone[: len(MANY)], found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(
            ("--set", "engine.max_batch_tokens=24", "--set", "engine.max_batch_rows=6"),
            id="prompts in chunks of at most 24 tokens",
        ),
        pytest.param(("--set", "engine.prefix_cache=false"), id="no prefix cache"),
        pytest.param(("--ballast", "12M"), id="ballast"),
        pytest.param(("--threads", "2"), id="two threads"),
    ],
)
def test_equal_under_other_settings(
    start_service: Callable[..., str], alone: list[Outcome], flags: tuple[str, ...]
):
    address = start_service(*LIMIT, *flags)
    assert differing_in_many(alone, address, concurrency=16, shuffle_seed=3) == []


@pytest.mark.slow
def test_equal_when_blocks_run_out_and_rows_are_preempted(
    start_service: Callable[..., str], alone: list[Outcome]
):
    address = start_service(*LIMIT, "--kv-memory", "1600KiB")  # 320 tokens
    assert differing(alone, run(address, REQUESTS, concurrency=32, shuffle_seed=5)) == []
    with Client(address) as client:
        load = idle_load(client)
    assert load.num_preemptions > 10
    assert load.num_free_blocks == load.num_blocks


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_equal_on_several_ranks(
    start_service: Callable[..., str], alone: list[Outcome], ranks: int
):
    address = start_service(*LIMIT, "--topology", f"{ranks}+0", "--oversubscribe")
    assert differing_in_many(alone, address, concurrency=32, shuffle_seed=5) == []
    with Client(address) as client:
        assert client.server_info().topology == f"{ranks}+0"


@pytest.mark.slow
@pytest.mark.skipif(not can_halve_exactly(), reason="no products with 16-bit weights here")
def test_weights_of_16_bits_give_equal_tokens_on_two_ranks_with_drafts(
    start_service: Callable[..., str], alone: list[Outcome]
):
    ranks = ("--topology", "2+0", "--oversubscribe", "--speculation", "sync", "--drafter", "ngram")
    address = start_service(*LIMIT, *ranks)
    with Client(address) as client:
        assert client.model_info().half_weights
    assert differing_in_many(alone, address, concurrency=32, shuffle_seed=5) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "dtype", "others"),
    [
        pytest.param("--dtype", "bfloat16", (TWO_RANKS, SYNC, ASYNC), id="whole"),
        pytest.param("--kv-dtype", "float32", (TWO_RANKS, SYNC), id="kv"),
    ],
)
def test_bfloat16_gives_equal_tokens_together_on_two_ranks_and_with_drafts(
    start_service: Callable[..., str],
    alone: list[Outcome],
    flag: str,
    dtype: str,
    others: tuple[tuple[str, ...], ...],
):
    brain = (*LIMIT, flag, "bfloat16", "--oversubscribe", "--speculation")
    address = start_service(*brain, "off")
    with Client(address) as client:
        info = client.model_info()
        assert (info.dtype, info.kv_dtype) == (dtype, "bfloat16")
    reference = run(address, MANY, concurrency=1)
    assert differing(reference, run(address, MANY, concurrency=32, shuffle_seed=5)) == []
    for flags in others:
        found = run(start_service(*brain, *flags), FEW, concurrency=16, shuffle_seed=3)
        assert differing(reference[: len(FEW)], found) == [], flags
    same = [a.token_ids == b.token_ids for a, b in zip(alone, reference, strict=False)]
    assert 0.5 * len(MANY) < sum(same) < len(MANY)
