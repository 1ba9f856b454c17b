"""One request over either API, as raw as it comes, and how it was refused."""

import http.client
import json
from typing import NamedTuple

import grpc

from specserve.api.grpc_gen import generation_pb2 as pb
from tests.reliability.fuzz.campaign import Attacked

_MAX_BYTES = (("grpc.max_send_message_length", -1),)


class Answer(NamedTuple):
    """`status`: of HTTP, or a gRPC status's name."""

    status: str
    text: str


def post(attacked: Attacked, path: str, content: bytes) -> Answer:
    """Over HTTP, on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", attacked.http_port, timeout=30)
    try:
        connection.request("POST", path, content)
        answer = connection.getresponse()
        return Answer(str(answer.status), answer.read().decode())
    finally:
        connection.close()


def complete(attacked: Attacked, **fields: object) -> Answer:
    return post(attacked, "/v1/completions", json.dumps({"prompt": "def", **fields}).encode())


def generate(attacked: Attacked, request: pb.GenerateRequest) -> Answer:
    """Over gRPC, on a channel of its own."""
    with grpc.insecure_channel(attacked.address, options=_MAX_BYTES) as channel:
        call = channel.unary_unary("/specserve.v1.Generation/Generate")
        try:
            call(request.SerializeToString(), timeout=30)
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)  # noqa: PT017 - what grpc raises is both
            return Answer(error.code().name, error.details() or "")
    return Answer("OK", "")
