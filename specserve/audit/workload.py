# pyright: strict
"""What an audit asks: held-out texts of both domains, and requests with all sampling fields."""

import json
import random
from importlib.resources import files

import msgspec

from specserve.client import Options

_FILES = ("code.jsonl", "prose.jsonl")
_TEMPERATURES = (0.0, 0.0, 0.3, 0.7, 1.0, 1.0, 1.2, 1.5)
_LENGTHS = (1, 4, 16, 32, 64)
_MIXTURES: tuple[Options, ...] = (
    {"top_p": 0.9},
    {"top_k": 20},
    {"min_p": 0.05},
    {"top_k": 50, "top_p": 0.95, "min_p": 0.01},
    {"presence_penalty": 0.7, "frequency_penalty": 0.3},
    {"repetition_penalty": 1.3},
    {"logit_bias": {5: 3.0, 6: -100.0}},
    {"stop": ("\n\n", "return")},
    {"min_tokens": 4},
    {"ignore_eos": True},
    {"n": 2},
    {"logprobs": 2},
    {"prompt_logprobs": 1, "logprobs": 0},
)


class SeededCall(msgspec.Struct, frozen=True):
    """A request whose answer is one text, whoever drafts; `options` always has a seed."""

    prompt: str
    options: Options


def texts() -> list[str]:
    """The held-out prompts that come with the package."""
    folder = files("specserve") / "assets" / "prompts"
    lines = (line for name in _FILES for line in (folder / name).read_text("utf-8").splitlines())
    return [str(json.loads(line)["text"]) for line in lines]


def seeded_calls(count: int, seed: int) -> list[SeededCall]:
    """`count` requests: temperature 0 to 1.5, mixed fields, prompts and lengths."""
    rng = random.Random(seed)
    known = texts()
    calls: list[SeededCall] = []
    for _ in range(count):
        options: Options = {
            "seed": rng.randrange(2**64),
            "temperature": rng.choice(_TEMPERATURES),
            "max_tokens": rng.choice(_LENGTHS),
        }
        if rng.random() < 0.6:
            options |= rng.choice(_MIXTURES)
        if "min_tokens" in options:
            options["max_tokens"] = max(8, options["max_tokens"])
        calls.append(SeededCall(_opening(rng, known), options))
    return calls


def openings(count: int, seed: int) -> list[str]:
    """Beginnings to continue."""
    rng = random.Random(seed)
    known = texts()
    return [_opening(rng, known) for _ in range(count)]


def _opening(rng: random.Random, known: list[str]) -> str:
    return rng.choice(known)[: rng.choice((8, 60, 150, 300))]
