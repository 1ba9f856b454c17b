# pyright: strict
"""Clients that are libraries: a script uses each as it comes from PyPI.

`openai` is OpenAI's own, and `langchain-openai` is built on it; `grpc_requests` knows no schema and
finds everything by reflection.
"""

from pathlib import Path

from bench.clients.setting import Command, KnownClient, Setting

_FOLDER = Path(__file__).parent


def _openai(setting: Setting) -> list[Command]:
    """Whole answers and streams, blocking and asynchronous."""
    script = str(_FOLDER / "ask_openai.py")
    return [Command(("python", script, f"{setting.url}/v1", str(setting.num_tokens)))]


def _tools(setting: Setting) -> list[Command]:
    """Tool calls, free and forced, and what they returned."""
    script = str(_FOLDER / "ask_tools.py")
    return [Command(("python", script, f"{setting.url}/v1", str(setting.num_tokens)))]


def _langchain(setting: Setting) -> list[Command]:
    """Tools that are bound, and structures by each method."""
    script = str(_FOLDER / "ask_langchain.py")
    return [Command(("python", script, f"{setting.url}/v1", str(setting.num_tokens)))]


def _responses(setting: Setting) -> list[Command]:
    """Of /v1/responses: whole, streamed, kept, in the background, with functions."""
    script = str(_FOLDER / "ask_responses.py")
    return [Command(("python", script, f"{setting.url}/v1", str(setting.num_tokens)))]


def _reflection(setting: Setting) -> list[Command]:
    """Every service and method, a call of each kind."""
    script = str(_FOLDER / "ask_reflection.py")
    return [Command(("python", script, setting.address, str(setting.num_tokens)))]


OPENAI = KnownClient(
    name="openai",
    package="openai",
    install="pip install openai",
    commands=_openai,
    expects="refused",  # the last thing that it does
)

TOOLS = KnownClient(
    name="tools",
    package="openai",
    install="pip install openai",
    commands=_tools,
    expects="two of one name is refused",
)

LANGCHAIN = KnownClient(
    name="langchain",
    package="langchain-openai",
    install="pip install langchain-openai",
    commands=_langchain,
    expects="strict, streamed: Country(",
)

RESPONSES = KnownClient(
    name="responses",
    package="openai",
    install="pip install openai",
    commands=_responses,
    expects="deleted",  # the last thing that it does
)

REFLECTION = KnownClient(
    name="reflection",
    package="grpc_requests",
    install="pip install grpc_requests",
    commands=_reflection,
    expects="num_generated_tokens",
)
