"""A real service as a gateway's worker: the tokens of `specserve.v1`, drafted ones counted."""

import time
from collections.abc import Iterator

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc as stubs

from specserve.api.info import SpecStats
from specserve.client import Client
from tests.service.launched import Launched

pytestmark = pytest.mark.slow

PROMPT = "import os\nimport sys\nimport os\nimport sys\nimport os\n"
_REPORTED_S = 0.4  # after which the target has told its counts anew
FLAGS = ("--no-http", "--oversubscribe", "--speculation", "sync", "--drafter", "ngram")


@pytest.fixture(scope="module")
def launched() -> Iterator[Launched]:
    service = Launched(*FLAGS)
    try:
        service.address()
        yield service
    finally:
        service.process.terminate()
        code = service.exit_code()
        assert service.process.stdout
        service.process.stdout.close()
    assert code == 0


def settled(client: Client) -> SpecStats:
    """The target's counts, once it has nothing to do any more."""
    limit_s, found = time.monotonic() + 5, client.spec_stats()
    while time.monotonic() < limit_s:
        time.sleep(_REPORTED_S)
        before, found = found, client.spec_stats()
        if before.num_rounds == found.num_rounds:
            return found
    raise AssertionError("rounds go on")


def test_a_worker_makes_the_tokens_that_the_service_makes(launched):
    address = launched.address()
    with Client(address) as client, grpc.insecure_channel(address) as channel:
        ours = client.generate(PROMPT, max_tokens=24, temperature=0, n=2)
        before = settled(client)
        worker = stubs.VllmEngineStub(channel)
        assert worker.HealthCheck(pb.HealthCheckRequest()).healthy
        request = pb.GenerateRequest(
            text=PROMPT, sampling_params=pb.SamplingParams(max_tokens=24, temperature=0, n=2)
        )
        ends = [each.complete for each in worker.Generate(request)]
        after = settled(client)
        request.stream = True
        pieces = [each.chunk for each in worker.Generate(request) if each.HasField("chunk")]
    expected = [sample.token_ids for sample in ours.samples]
    assert [list(end.output_ids) for end in ends] == expected
    assert [end.prompt_tokens for end in ends] == [ours.usage.num_prompt_tokens] * 2
    for index, token_ids in enumerate(expected):
        streamed = [t for each in pieces if each.index == index for t in each.token_ids]
        assert streamed == token_ids
    accepted = sum(end.spec_accepted_tokens for end in ends)
    drafted = sum(end.spec_draft_tokens for end in ends)
    assert accepted == after.num_accepted_tokens - before.num_accepted_tokens > 0
    assert drafted == after.num_draft_tokens - before.num_draft_tokens
