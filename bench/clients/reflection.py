# pyright: strict
"""A gRPC client that knows no schema: `grpc_requests` finds everything by reflection."""

from pathlib import Path

from bench.clients.setting import Command, KnownClient, Setting

SCRIPT = Path(__file__).parent / "ask_reflection.py"


def _commands(setting: Setting) -> list[Command]:
    return [Command(("python", str(SCRIPT), setting.address, str(setting.num_tokens)))]


REFLECTION = KnownClient(
    name="reflection",
    package="grpc_requests",
    install="grpc_requests",
    commands=_commands,
    expects="num_generated_tokens",
)
