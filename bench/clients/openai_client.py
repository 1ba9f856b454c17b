# pyright: strict
"""OpenAI's own Python client: whole answers, streams, both blocking and asynchronous."""

from pathlib import Path

from bench.clients.setting import Command, KnownClient, Setting

SCRIPT = Path(__file__).parent / "ask_openai.py"


def _commands(setting: Setting) -> list[Command]:
    words = ("python", str(SCRIPT), f"{setting.url}/v1", str(setting.num_tokens))
    return [Command(words)]


OPENAI = KnownClient(
    name="openai",
    package="openai",
    install="openai",
    commands=_commands,
    expects="refused",  # the last thing that it does
)
