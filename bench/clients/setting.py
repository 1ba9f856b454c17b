# pyright: strict
"""What a client is started with, and what it is started as: types that every client here shares."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Setting:
    """A running service, and what a client needs beside it."""

    url: str  # of OpenAI's API, without /v1
    address: str  # host:port of gRPC
    model: str  # its name, as clients send it
    tokenizer: Path  # a Hugging Face folder
    scratch: Path  # what a client writes that nobody keeps
    prompts: tuple[str, ...]
    num_requests: int
    num_tokens: int  # of an answer

    def write_lines(self, name: str, lines: list[str]) -> Path:
        """A file of prompts in a form of the client's own."""
        path = self.scratch / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path


@dataclass(frozen=True)
class Command:
    """One call of a client: `words` behind the environment's `bin` folder."""

    words: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class KnownClient:
    """One that can be asked for by `name`."""

    name: str
    package: str  # distribution whose version is told
    install: str  # what to type where it is missing
    commands: Callable[[Setting], list[Command]]
    expects: str  # text without which an output is a failure
    drops: Callable[[str], bool] = lambda _: False  # lines of the output that say nothing of us
