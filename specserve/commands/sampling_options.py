# pyright: strict
"""Flags for the fields of a request. Ranges are the server's business: it names field and limit."""

import argparse
from collections.abc import Collection
from typing import TYPE_CHECKING, cast

from specserve.errors import InvalidField

if TYPE_CHECKING:
    from specserve.client import Options

_NUMBERS = (
    ("temperature", float, "0 is greedy (default: as the model's file says, or 1)"),
    ("top_p", float, "keep the likeliest tokens whose probabilities sum to this"),
    ("top_k", int, "keep this many of the likeliest tokens; 0 and -1 keep all"),
    ("min_p", float, "keep tokens at least this likely relative to the likeliest"),
    ("presence_penalty", float, "subtracted once from logits of generated tokens"),
    ("frequency_penalty", float, "subtracted per occurrence from logits of generated tokens"),
    ("repetition_penalty", float, "divides positive logits of tokens seen before"),
    ("min_tokens", int, "no end before this many tokens"),
    ("max_tokens", int, "at most this many tokens per sample (default 256)"),
    ("n", int, "number of samples"),
    ("logprobs", int, "log probabilities of tokens and N likeliest; shown by generate --json"),
    ("prompt_logprobs", int, "the same for the tokens of the prompt; shown by generate --json"),
    ("seed", int, "the same seed gives the same text, whatever else runs"),
    ("priority", int, "lower runs first (default 0)"),
    ("min_tokens_per_s", float, "aim at so many a second: drafts of who is behind go first"),
)


def add_sampling_options(parser: argparse.ArgumentParser, refused: Collection[str] = ()) -> None:
    """Add the flags to `parser`, in a group of their own.

    The fields that the command is going to refuse are read, for it to say why, and not shown.
    """
    group = parser.add_argument_group("sampling")
    for field, kind, text in _NUMBERS:
        metavar = "X" if kind is float else "N"
        shown = argparse.SUPPRESS if field in refused else text
        group.add_argument(_flag(field), dest=field, type=kind, metavar=metavar, help=shown)
    group.add_argument(
        "--ignore-eos", action="store_true", default=None, help="go on behind the model's end"
    )
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be repeated"
    )
    group.add_argument(
        "--stop-token-id", dest="stop_token_ids", action="append", type=int, metavar="ID",
        help="end with this token; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--logit-bias", action="append", metavar="ID=BIAS",
        help="is added to the logit of this token; may be repeated",
    )  # fmt: skip


def read_sampling(arguments: argparse.Namespace) -> "Options":
    """What was given, and nothing else: the server has the defaults. Raises InvalidField."""
    fields = [*(field for field, *_ in _NUMBERS), "ignore_eos", "stop", "stop_token_ids"]
    values = {field: getattr(arguments, field) for field in fields}
    given = {field: value for field, value in values.items() if value is not None}
    options = cast("Options", given)
    if arguments.logit_bias:
        options["logit_bias"] = dict(_bias(text) for text in arguments.logit_bias)
    return options


def _bias(text: str) -> tuple[int, float]:
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError as error:
        raise InvalidField("--logit-bias", f"{text!r} is not of the form ID=BIAS") from error


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")
