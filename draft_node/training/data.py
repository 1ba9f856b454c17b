# pyright: strict
"""`specserve train data`: chats that a target writes itself, for its drafters to be trained on.

Starts a service of the target, plain and with as many rows as chats are written at once, and asks
it as chat clients would. Needs no memory of its own for the model, and knows no drafters.
"""

import argparse
import asyncio
import fcntl
import json
import os
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from draft_node.training.chats import sources
from draft_node.training.chats.overlap import Overlap
from draft_node.training.chats.questions import Questions, read_questions
from draft_node.training.chats.store import MANIFEST, ChatStore, too_few_held_out
from draft_node.training.chats.writing import (
    TEMPERATURES,
    ChatWriter,
    QuestionFeeds,
    WritingConfig,
)
from draft_node.training.options import positive_int, whole_number
from draft_node.training.progress import underway
from draft_node.training.self_text import weights_digest
from specserve.api.tokenizer import TextTokenizer
from specserve.client import AsyncClient
from specserve.errors import InvalidField, Unsupported
from specserve.models.config import read_json, read_spec
from specserve.processes.local_service import local_service
from specserve.processes.run_dir import make_output_folder
from specserve.settings.target_source import locate_target

_EXIT_STOPPED = 130
_LINE_EVERY_S = 15.0  # where no bar is drawn
EXAMPLES = """examples:
  specserve train data --out chats --tokens 1000000
  specserve train data --target ./Llama-3.2-1B --out chats --tokens 20000000 --rows 256
  specserve train data --out chats --tokens 1000000 --prompts questions.jsonl --exclude bench.jsonl
The same command goes on where it was stopped, and to more tokens.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `specserve train data`."""
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("--target", metavar="MODEL", help="as of specserve launch (default: its default)")
    add("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    add("--tokens", type=positive_int, required=True, metavar="N",
        help="of all requests and answers together")  # fmt: skip
    add("--prompts", type=Path, metavar="FILE",
        help="questions to ask first: text, or JSON lines (prompt, question, turns, messages, "
        "conversations), of which the first that a user says is asked")  # fmt: skip
    add("--exclude", type=Path, nargs="+", default=[], metavar="FILE",
        help="text of which no question may have eight words in a row")  # fmt: skip
    add("--sources", type=whole_number(0, 100), default=4, metavar="N",
        help="one chat in N asks about Python's own sources; 0: none (default: 4)")  # fmt: skip
    add("--follow-ups", type=whole_number(0, 100), default=4, metavar="N",
        help="one chat in N has a second turn; 0: none (default: 4)")  # fmt: skip
    add("--max-tokens", type=positive_int, default=384, help="of an answer (default: 384)")
    add("--rows", type=positive_int, default=64, help="chats written at once (default: 64)")
    add("--seed", type=whole_number(0, 2**31 - 1), default=0, metavar="N", help="default: 0")
    add("--flags", default="", metavar='"FLAGS"', help="of specserve launch, besides")
    add("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    add("--threads", type=positive_int, default=os.cpu_count() or 1, help="CPU threads")


def run(arguments: argparse.Namespace) -> int:
    """Write until there are --tokens; 0 when there are, 130 when stopped. Raises SpecserveError."""
    target = locate_target(arguments.target)
    vocab_size, tokenizer = read_spec(target).vocab_size, TextTokenizer(target)
    if not tokenizer.has_chat_template:
        raise Unsupported(f"--target: {target} has no chat template, so it writes no chats")
    questions = Questions(Overlap(arguments.exclude, "--exclude"))
    given = [] if arguments.prompts is None else list(read_questions(arguments.prompts))
    # What was asked in an earlier run is passed over by `questions`: the feeds begin anew.
    feeds = QuestionFeeds(iter(given), sources.questions(arguments.seed))
    make_output_folder(arguments.out, "--out")
    _lock(arguments.out)
    store = ChatStore(arguments.out)
    _claim(arguments, target, store)
    config = WritingConfig(
        num_tokens=arguments.tokens,
        num_at_once=arguments.rows,
        max_tokens=arguments.max_tokens,
        seed=arguments.seed,
        sources_every=arguments.sources,
        follow_up_every=arguments.follow_ups,
    )
    console = Console(stderr=True)
    what, exit_code = "the same command with more --tokens goes on", 0
    try:
        with ExitStack() as stack:
            with underway(f"starting a service of {target.name}"):
                flags = _service_flags(arguments, target)
                address = stack.enter_context(local_service(flags))
            writer = _Writing(tokenizer, store, questions, feeds, config, vocab_size, console)
            asyncio.run(writer.run(address))
    except KeyboardInterrupt:
        what, exit_code = "stopped; the same command goes on", _EXIT_STOPPED
    finally:
        tokenizer.close()
    num_tokens = sum(exchange.num_tokens for exchange in store.exchanges())
    found = f"{num_tokens:,} tokens of {store.next_number:,} chats in {arguments.out}"
    console.print(f"{found}; {what}", soft_wrap=True, highlight=False)
    if (remark := too_few_held_out(store)) is not None:
        console.print(remark, soft_wrap=True, highlight=False)
    return exit_code


def _lock(folder: Path) -> None:
    """Have the folder alone until this process ends. Raises InvalidField while another has it."""
    descriptor = os.open(folder / "lock", os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InvalidField("--out", f"{folder}: another run writes there") from error


def _service_flags(arguments: argparse.Namespace, target: Path) -> list[str]:
    """Plain decoding of as many rows as chats are written at once."""
    rows = str(arguments.rows)
    flags = ["--target", str(target), "--speculation", "off", "--max-batch-rows", rows]
    flags += ["--threads", str(arguments.threads)]
    if arguments.device is not None:
        flags += ["--device", arguments.device]
    try:
        return [*flags, *shlex.split(arguments.flags)]
    except ValueError as error:
        raise InvalidField("--flags", f"{arguments.flags!r}: {error}") from error


def _claim(arguments: argparse.Namespace, target: Path, store: ChatStore) -> None:
    """Say in the folder what is written there; raises InvalidField if it is something else."""
    settings: dict[str, Any] = {
        "target": target.name,
        "weights": weights_digest(target),
        "seed": arguments.seed,
        "max_tokens": arguments.max_tokens,
        "sources": arguments.sources,
        "follow_ups": arguments.follow_ups,
        "temperatures": list(TEMPERATURES),
        "licences_of_sources": sources.LICENCES if arguments.sources else {},
    }
    path = arguments.out / MANIFEST
    if store.next_number and not path.is_file():
        problem = f"{arguments.out} has chats but no {MANIFEST}, which says whose they are"
        raise InvalidField("--out", f"{problem}; choose another")
    begun = read_json(path, dict[str, Any]) if store.next_number else settings
    for name, value in settings.items():
        if begun.get(name) != value:
            flag = "--target" if name in ("target", "weights") else f"--{name.replace('_', '-')}"
            problem = f"{arguments.out} was begun with {begun.get(name)!r}"
            raise InvalidField(flag, f"{value!r}: {problem}; choose another --out")
    path.write_text(json.dumps(settings, indent=2) + "\n")


class _Writing:
    """A `ChatWriter` with its client, and what people see of it."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        store: ChatStore,
        questions: Questions,
        feeds: QuestionFeeds,
        config: WritingConfig,
        vocab_size: int,
        console: Console,
    ) -> None:
        self._parts = (tokenizer, store, questions, feeds, config, vocab_size)
        self._total, self._console = config.num_tokens, console

    async def run(self, address: str) -> None:
        """Write with the service at `address`, with a bar, or a line now and then to a file."""
        columns = (
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} tokens"),
            BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        is_terminal = self._console.is_terminal
        async with AsyncClient(address) as client:
            writer = ChatWriter(client, *self._parts)
            with Progress(*columns, console=self._console, disable=not is_terminal) as bar:
                task = bar.add_task("", total=self._total, completed=writer.num_tokens)
                lines = None if is_terminal else asyncio.create_task(self._tell(writer))
                try:
                    await writer.run(lambda count: bar.update(task, completed=count))
                finally:
                    if lines is not None:
                        lines.cancel()

    async def _tell(self, writer: ChatWriter) -> None:
        """A line now and then, also while no chat ends."""
        while True:
            await asyncio.sleep(_LINE_EVERY_S)
            self._console.print(
                f"{writer.num_tokens:,} of {self._total:,} tokens, "
                f"{writer.num_begun:,} chats begun",
                soft_wrap=True, highlight=False,
            )  # fmt: skip
