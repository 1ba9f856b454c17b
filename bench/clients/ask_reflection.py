"""A script for `grpc_requests` as it comes from PyPI: `python ask_reflection.py ADDRESS TOKENS`."""

import sys
from typing import Any

from grpc_requests import Client  # pyright: ignore[reportMissingImports]

QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}


say = sys.stdout.write


def main() -> None:
    """List what is there, then call a method of each kind."""
    address, num_tokens = sys.argv[1], int(sys.argv[2])
    client: Any = Client.get_by_endpoint(address)
    for name in client.service_names:
        say(f"{name}: {', '.join(client.service(name).method_names)}\n")
    ask(client, num_tokens)


def ask(client: Any, num_tokens: int) -> None:  # noqa: ANN401 - the library has no types
    """What a service is, an answer as a whole and as a stream, and whether it is well."""
    request = {
        "chat": QUESTION,
        "sampling": {"max_tokens": num_tokens, "temperature": 0.0},
        "spec": {"return_stats": True},
    }
    model = client.service("specserve.v1.Control").GetModelInfo({})
    say(f"GetModelInfo: {model['model']}, {model['max_model_len']} tokens of context\n")
    generation = client.service("specserve.v1.Generation")
    whole = generation.Generate(request)
    say(f"Generate: {whole['samples'][0]['text']!r}\n")
    for event in generation.GenerateStream(request):
        say(f"GenerateStream: {event}\n")
    health = client.service("grpc.health.v1.Health").Check({"service": "specserve.v1.Generation"})
    say(f"Check: {health}\n")


if __name__ == "__main__":
    main()
