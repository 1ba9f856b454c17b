"""Token streams to train a drafter on: the corpus or a user's own text, and the target's writing.

Everything is in the target's vocabulary. Own text is one domain, "text"; its last twentieth is
held out. What the target writes from a domain's prompts is the domain "self-<name>". Chats that
`specserve train data` wrote are the domain "chat", and then the only one.
"""

import argparse
import hashlib
import logging
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from draft_node.training import dataset
from draft_node.training.batches import WINDOW, encode_stream, tokens_of
from draft_node.training.chats.store import (
    LEAST_HELD_OUT,
    MANIFEST,
    Exchange,
    chats_in,
    is_held_out,
    stream_of,
    too_few_held_out,
)
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.options import work_folder
from draft_node.training.self_text import Pool, SelfTextConfig, weights_digest
from draft_node.training.tokenizer import END_OF_TEXT
from specserve.errors import InvalidField, Unsupported
from specserve.models.config import read_json
from specserve.models.known_tokens import TOKENIZER_FILE
from specserve.models.tokenizer_files import load_tokenizer

log = logging.getLogger(__name__)

Streams = dict[str, np.ndarray]  # one per domain

_CHAT = "chat"
_HELD_OUT_SHARE = 0.05
_SHORTEST = 1024  # tokens of a training stream
_LEAST_OF_TEXT = 96  # tokens held out, more than the longest block, which is drafted there
_SAMPLE_LENGTH, _SAMPLE_ROWS = 256, 16  # of each domain
_TEXT_SUFFIXES = {".txt", ".md", ".rst", ".py", ".json", ".jsonl", ".html", ".c", ".h", ".cpp",
                  ".rs", ".go", ".js", ".ts", ".java", ".sh", ".toml", ".yaml", ".yml"}  # fmt: skip


@dataclass(frozen=True)
class TextConfig:
    """Where the text comes from, and how much of it the target writes."""

    work: Path
    text: Path | None = None  # None: the corpus
    self_share: float = 0.5  # of the rows
    self_tokens: int = 600_000  # over all domains; read several times if need be
    held_out_tokens: int = 16_384  # a domain
    seed: int = 0
    data: Path | None = None  # chats; nothing else is read then

    @staticmethod
    def of(arguments: argparse.Namespace) -> "TextConfig":
        """What the flags of `options.add_run_options` say; raises InvalidField if they disagree."""
        if arguments.data is not None and arguments.text is not None:
            raise InvalidField("--text", "is not read beside --data; give one of them")
        if arguments.data is not None:
            chats_in(arguments.data)  # before models are loaded
        return TextConfig(
            work=work_folder(arguments),
            text=arguments.text,
            self_share=arguments.self_text,
            self_tokens=min(arguments.self_tokens, _most_read(arguments)),
            seed=arguments.seed,
            data=arguments.data,
        )


def _most_read(arguments: argparse.Namespace) -> int:
    """Tokens of the target's writing that a run of so many steps reads at most."""
    if arguments.steps is None:
        return arguments.self_tokens
    return max(1, round(arguments.steps * arguments.tokens_per_step * arguments.self_text))


@dataclass(frozen=True)
class TextSource:
    """Streams per domain, and the order in which rows are taken from them."""

    training: Streams
    held_out: Streams
    turns: tuple[str, ...]
    starts: dict[str, np.ndarray] = field(default_factory=dict)  # of texts whose starts are known


def gather(target: FrozenTarget, config: TextConfig) -> TextSource:
    """All streams; collects, encodes and lets the target write what is not there yet."""
    if config.data is not None:
        warn_of_others_chats(config.data, target.folder)
        return chats(config.data, target.spec.vocab_size)
    with dataset.preparing(config.work):
        return _gathered(target, config)


def _gathered(target: FrozenTarget, config: TextConfig) -> TextSource:
    tokenizer = _tokenizer(target.folder)
    if config.text is None:
        training, held_out = _corpus(tokenizer, target.folder, config.work)
    else:
        training, held_out = own_text(config.text, tokenizer, _separator(target, tokenizer))
    if not config.self_share:
        return TextSource(training, held_out, tuple(training))
    share = -(-config.self_tokens // len(training))  # tokens of each domain
    pool = Pool(target, config.work, SelfTextConfig(seed=config.seed), most=share)
    # The target writes behind prompts out of the text: behind other text it is other writing.
    mark = "" if config.text is None else f"-{text_digest(config.text)[:8]}"
    written = {f"self-{n}": pool.stream(f"train-{n}{mark}", s, share) for n, s in training.items()}
    small = Pool(target, config.work, SelfTextConfig(rows=64, seed=config.seed))
    limit = config.held_out_tokens
    kept = {f"self-{n}": small.stream(f"held-out-{n}{mark}", s, limit) for n, s in held_out.items()}
    turns = take_turns(tuple(training), tuple(written), config.self_share)
    return TextSource(training | written, held_out | kept, turns)


def chats(folder: Path, vocab_size: int) -> TextSource:
    """The chats in a folder. Raises InvalidField if it holds too few, or ids of other models."""
    parts: dict[bool, list[Exchange]] = {False: [], True: []}
    store = chats_in(folder)
    for exchange in store.exchanges():
        parts[is_held_out(exchange)].append(exchange)
    (training, starts), (held_out, _) = (stream_of(parts[held]) for held in (False, True))
    if len(training) < _SHORTEST:
        problem = f"{len(training)} tokens are too few for training, {_SHORTEST} needed"
        raise InvalidField("--data", f"{folder}: {problem}; specserve train data writes more")
    if (problem := too_few_held_out(store)) is not None:
        raise InvalidField("--data", f"{folder}: {problem}")
    # Figures are those of whole windows.
    if not (held_out[: max(LEAST_HELD_OUT, (len(held_out) - 1) // WINDOW * WINDOW)] >= 0).any():
        problem = "no answer in what is held out, whose few requests are long"
        raise InvalidField("--data", f"{folder}: {problem}; specserve train data writes more")
    if (most := max(max(part.max(), ~part.min()) for part in (training, held_out))) >= vocab_size:
        problem = f"the target has no token {most}: not its chats; --target names their model"
        raise InvalidField("--data", f"{folder}: {problem}")
    log.info("chats: %d requests, %d tokens, %d answers' tokens",
             len(parts[False]), len(training), (training >= 0).sum())  # fmt: skip
    return TextSource({_CHAT: training}, {_CHAT: held_out}, (_CHAT,), {_CHAT: starts})


def warn_of_others_chats(folder: Path, target: Path) -> None:
    """Say so if the folder tells of other weights, which may be the same in another form."""
    path = folder / MANIFEST
    weights = read_json(path, dict[str, Any]).get("weights") if path.is_file() else None
    if weights not in (None, weights_digest(target)):
        log.warning("%s: its chats were not written by the weights of %s", folder, target.name)


def sample_of(training: Streams, longest: int) -> Tensor:
    """Rows of all streams for weights to be fitted on, int64 [R, T], T at most `longest`."""
    length = min(_SAMPLE_LENGTH, longest)
    rows = [
        stream[start : start + length]
        for stream in training.values()
        for start in range(0, len(stream) - length, max(length, len(stream) // _SAMPLE_ROWS))
    ]
    return tokens_of(torch.from_numpy(np.stack(rows).astype(np.int64)))


def take_turns(plain: tuple[str, ...], written: tuple[str, ...], share: float) -> tuple[str, ...]:
    """An order in which `share` of the rows, to a twentieth, is the target's writing."""
    fraction = Fraction(share).limit_denominator(20)
    count = fraction.denominator * len(plain)
    turns, num_written = list[str](), 0
    for place in range(count):
        if (place + 1) * fraction >= num_written + 1:
            turns.append(written[num_written % len(written)])
            num_written += 1
        else:
            turns.append(plain[(place - num_written) % len(plain)])
    return tuple(turns)


def own_text(path: Path, tokenizer: Tokenizer, separator: str) -> tuple[Streams, Streams]:
    """Training and held-out streams of a text file, or of all text files below a folder."""
    texts = [text for file in _text_files(path) if (text := _read(file))]
    stream = encode_stream(tokenizer, texts, separator)
    num_held_out = max(_LEAST_OF_TEXT, int(len(stream) * _HELD_OUT_SHARE))
    if len(stream) - num_held_out < _SHORTEST:
        needed = f"{_SHORTEST + num_held_out} needed"
        raise InvalidField("--text", f"{path}: {len(stream)} tokens are too few, {needed}")
    log.info("text: %d files, %d tokens", len(texts), len(stream))
    cut = len(stream) - num_held_out
    return {"text": stream[:cut]}, {"text": stream[cut:]}


def text_digest(path: Path) -> str:
    """Hexadecimal digest of what `own_text` reads of `path`; raises InvalidField if it cannot."""
    digest = hashlib.sha256()
    for place in _text_files(path):
        try:
            with place.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise InvalidField("--text", f"{place}: {error.strerror}") from error
    return digest.hexdigest()


def _corpus(tokenizer: Tokenizer, target: Path, work: Path) -> tuple[Streams, Streams]:
    if tokenizer.token_to_id(END_OF_TEXT) is None:
        raise InvalidField("--text", f"needed: the target has no {END_OF_TEXT} for the corpus")
    dataset.prepare(work, target)
    if dataset.load_tokenizer(work).to_str() != tokenizer.to_str():
        raise InvalidField("--work", f"{work}: its streams were made with another tokenizer")
    return dataset.streams(work, "train"), dataset.streams(work, "held-out")


def _tokenizer(target: Path) -> Tokenizer:
    if target.is_dir() and not (target / TOKENIZER_FILE).is_file():
        raise InvalidField("--target", f"{target}: {TOKENIZER_FILE} is missing")
    try:
        return load_tokenizer(target)
    except Unsupported as error:
        raise InvalidField("--target", str(error)) from error


def _separator(target: FrozenTarget, tokenizer: Tokenizer) -> str:
    """What ends a document: the target's first end-of-sequence token."""
    for token_id in target.spec.eos_token_ids:
        if (token := tokenizer.id_to_token(token_id)) is not None:
            return token
    raise InvalidField("--target", f"{target.folder}: names no end-of-sequence token")


def _text_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InvalidField("--text", f"{path}: no such file or folder")
    found = [p for p in sorted(path.rglob("*")) if p.suffix in _TEXT_SUFFIXES and p.is_file()]
    if not found:
        raise InvalidField("--text", f"{path}: no text files below it")
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        log.warning("text: %s is not UTF-8, left out", path)
        return ""
