"""What a gateway calls of the scripted service."""

from collections.abc import Iterator

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2_grpc as stubs

PROMPT_IDS = [5, 6, 7]


@pytest.fixture
def worker(rig) -> Iterator[stubs.VllmEngineStub]:
    """The shared service, as its gateway sees it; it is soon done."""
    rig.target.per_round = 8
    with grpc.insecure_channel(rig.address) as channel:
        yield stubs.VllmEngineStub(channel)


def asking(*, stream: bool = False, **sampling) -> pb.GenerateRequest:
    """A request for a prompt of three tokens."""
    return pb.GenerateRequest(
        tokenized=pb.TokenizedInput(original_text="never read", input_ids=PROMPT_IDS),
        sampling_params=pb.SamplingParams(**sampling),
        stream=stream,
    )


def ends_of(answers) -> list[pb.GenerateComplete]:
    return [each.complete for each in answers if each.HasField("complete")]


def pieces_of(answers) -> list[pb.GenerateStreamChunk]:
    return [each.chunk for each in answers if each.HasField("chunk")]


def refusal(call) -> grpc.RpcError:
    """How a call ends that is refused."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    return caught.value
