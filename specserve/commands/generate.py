# pyright: strict
"""`specserve generate`: one prompt, streamed text or one JSON object."""

import argparse
import sys
from typing import TYPE_CHECKING

import msgspec

from specserve.api.call import SpecOptions
from specserve.commands.connection import add_connection_options, client_of
from specserve.commands.remarks import unshown_remark
from specserve.commands.sampling_options import add_sampling_options, read_sampling
from specserve.errors import InvalidField
from specserve.processes.standard_streams import (
    complain,
    named,
    require_stdin,
    require_stdout,
    write_stdout,
)
from specserve.types import Logprobs

_MAX_STDIN_BYTES = 64 * 2**20  # more than any context holds

if TYPE_CHECKING:
    from specserve.client import Client, CompletedSample, Completion, Options

HELP = "continue a prompt"
EXAMPLES = """examples:
  specserve generate "def fibonacci(n):"                       start a service, use it, stop it
  specserve generate --connect 127.0.0.1:7411 --temperature 0 --max-tokens 64 "import "
  specserve generate --json --n 3 --seed 7 --logprobs 2 "The licence"
  specserve generate --connect 127.0.0.1:7411 --priority -1 --min-tokens-per-s 40 "Dear"
  git diff | specserve generate --stop "diff --git" -          the prompt from stdin
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `generate`."""
    parser.add_argument("prompt", metavar="PROMPT", help="text to continue; - reads stdin")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    add_sampling_options(parser)
    add_connection_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Generate; raises SpecserveError."""
    require_stdout()
    options = read_sampling(arguments)
    prompt = _read_stdin() if arguments.prompt == "-" else str(arguments.prompt)
    with client_of(arguments) as client:
        if arguments.json:
            options["spec"] = SpecOptions(return_stats=True)
            completion = client.generate(prompt, **options)
            write_stdout(msgspec.json.encode(as_json(completion)).decode() + "\n")
        elif options.get("n", 1) > 1:
            _write_samples(client.generate(prompt, **options))
        else:
            _write_stream(client, prompt, options)
    # Last, where the eye is once all is written; and a refusal stays alone on its line.
    if not arguments.json and (remark := unshown_remark(options)) is not None:
        complain(remark)
    return 0


def _read_stdin() -> str:
    require_stdin()
    if sys.stdin.isatty():
        complain("the prompt is read from the terminal; Ctrl-D on a line of its own ends it")
    try:
        with named("stdin"):
            read = sys.stdin.buffer.read(_MAX_STDIN_BYTES + 1)
        if len(read) > _MAX_STDIN_BYTES:
            raise InvalidField("prompt", f"stdin has more than {_MAX_STDIN_BYTES} bytes")
        return read.decode()
    except UnicodeDecodeError as error:
        raise InvalidField("prompt", f"stdin is not UTF-8 at byte {error.start}") from error


def as_json(completion: "Completion") -> dict[str, object]:
    """The first sample's fields at the top; `choices` has all samples when there are several."""
    document = {
        "request_id": completion.request_id,
        **_sample_as_json(completion.samples[0]),
        "usage": msgspec.to_builtins(completion.usage),
        "timings": msgspec.to_builtins(completion.timings),
    }
    if len(completion.samples) > 1:
        choices = [
            {"index": sample.sample_index, **_sample_as_json(sample)}
            for sample in completion.samples
        ]
        document["choices"] = choices
    if completion.spec is not None and completion.spec.num_drafts:
        document["spec"] = msgspec.to_builtins(completion.spec)
    if completion.prompt.prompt_logprobs:
        document["prompt_logprobs"] = _logprobs_as_json(completion.prompt.prompt_logprobs)
    return document


def _sample_as_json(sample: "CompletedSample") -> dict[str, object]:
    document: dict[str, object] = {
        "text": sample.text,
        "token_ids": sample.token_ids,
        "finish_reason": sample.finish_reason.value,
    }
    if sample.stop_string is not None:
        document["stop_string"] = sample.stop_string
    if sample.stop_token_id is not None:
        document["stop_token_id"] = sample.stop_token_id
    if sample.logprobs:
        document["logprobs"] = _logprobs_as_json(sample.logprobs)
    return document


def _logprobs_as_json(positions: list[Logprobs]) -> list[dict[str, object]]:
    return [
        {
            "token_id": position.token_id,
            "token": _text_of(position.token_bytes),
            "logprob": position.logprob,
            "rank": position.rank,
            "top": [
                {"token_id": token_id, "token": _text_of(token), "logprob": logprob}
                for token_id, token, logprob in zip(
                    position.top_ids, position.top_bytes, position.top_logprobs, strict=True
                )
            ],
        }
        for position in positions
    ]


def _text_of(token: bytes) -> str:
    """A part of a character is a replacement for it."""
    return token.decode(errors="replace")


def _write_samples(completion: "Completion") -> None:
    for sample in completion.samples:
        heading = f"--- sample {sample.sample_index}: {sample.finish_reason.value}"
        write_stdout(f"{heading}\n{sample.text}\n")


def _write_stream(client: "Client", prompt: str, options: "Options") -> None:
    is_empty = True
    for delta in client.stream(prompt, **options):
        write_stdout(delta.text)
        is_empty = is_empty and not delta.text
    write_stdout("\n")
    if is_empty:
        complain("the model ended at once: this continues a text; specserve chat asks a question")
