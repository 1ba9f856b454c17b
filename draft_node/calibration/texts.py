"""Texts of the target by plain decoding: what drafters are measured on."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from draft_node.offline_target import OfflineTarget
from draft_node.training.chats.store import chats_in, is_held_out
from specserve.errors import InvalidField
from specserve.models.tokenizer_files import load_tokenizer
from specserve.sampling.batch import SamplingBatch
from specserve.sampling.sampling import NO_TOKEN, sample
from specserve.sampling.state import SamplingState
from specserve.types import SamplingParams

_LEAST_PROMPTS = 2  # half are fitted, half evaluate


@dataclass(frozen=True)
class Prompt:
    """A prompt and the domain it stands for."""

    domain: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Text:
    """A prompt and what the target made of it; `seed` is that of its sampling."""

    prompt: Prompt
    token_ids: tuple[int, ...]  # prompt included
    seed: int

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - len(self.prompt.token_ids)


def read_prompts(path: Path, target: Path, count: int, max_len: int) -> list[Prompt]:
    """`count` prompts of a .jsonl file, or as many of each such file in a folder, in turn.

    Of a longer prompt the last `max_len` tokens are kept. Raises `InvalidField` if there are too
    few, or lines are not objects with a `text`.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    texts = [_read_texts(file) for file in files]
    if sum(map(len, texts)) < count:
        raise InvalidField("--num-prompts", f"{path} has only {sum(map(len, texts))} prompts")
    tokenizer = load_tokenizer(target)
    chosen: list[Prompt] = []
    for number in range(max(map(len, texts))):
        for file, lines in zip(files, texts, strict=True):
            if number < len(lines) and len(chosen) < count:
                token_ids = tokenizer.encode(lines[number], add_special_tokens=False).ids
                if not token_ids:
                    raise InvalidField("--prompts", f"{file}: prompt {number + 1} has no tokens")
                chosen.append(Prompt(file.stem, tuple(token_ids[-max_len:])))
    return chosen


def name_of_prompts(path: Path) -> str:
    """What a calibration says it was asked: the name of a file or folder, and a digest of it."""
    digest = hashlib.sha256()
    kinds = ("*.jsonl", "*.npz")
    for file in sorted(f for kind in kinds for f in path.glob(kind)) if path.is_dir() else [path]:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return f"{path.name} ({digest.hexdigest()[:12]})"


def held_out_requests(folder: Path, count: int, max_len: int, vocab_size: int) -> list[Prompt]:
    """`count` requests of the chats in `folder`, in their template, none of which is learned.

    Those that are longer than `max_len` tokens are left out: what they ask stands at their end,
    and what is said of it before. Raises `InvalidField` if there are too few, or none of this
    vocabulary.
    """
    found = dict.fromkeys(
        tuple(map(int, exchange.prompt_ids))
        for exchange in chats_in(folder).exchanges()
        if is_held_out(exchange) and 0 < len(exchange.prompt_ids) <= max_len
    )
    if len(found) < count:
        problem = f"{count}: {folder} has {len(found)} held-out requests"
        what_to_do = "write more chats by specserve train data"
        if len(found) >= _LEAST_PROMPTS:
            what_to_do = f"type --num-prompts {len(found)}, or {what_to_do}"
        raise InvalidField("--num-prompts", f"{problem}; {what_to_do}")
    if (most := max(map(max, found))) >= vocab_size:
        raise InvalidField("--data", f"{folder}: the target has no token {most}: not its chats")
    # Kinds of chats take turns, but not evenly: the first few would be of one kind.
    step = len(found) / count
    requests = list(found)
    return [Prompt("chat", requests[int(place * step)]) for place in range(count)]


def _read_texts(path: Path) -> list[str]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise InvalidField("--prompts", f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        problem = f"cannot read {path}: not UTF-8 at byte {error.start}"
        raise InvalidField("--prompts", problem) from error
    return [_text_of(line, path, number) for number, line in enumerate(lines, 1) if line]


def _text_of(line: str, path: Path, number: int) -> str:
    try:
        return str(json.loads(line)["text"])
    except (ValueError, KeyError, TypeError) as error:
        problem = f'cannot read {path}: line {number} is no object with a "text"'
        raise InvalidField("--prompts", problem) from error


def write_texts(
    target: OfflineTarget,
    prompts: Sequence[Prompt],
    *,
    num_tokens: int,
    temperature: float,
    seed: int,
    batch_size: int = 16,
    advance: Callable[[int], None] = lambda num_tokens: None,
) -> list[Text]:
    """Up to `num_tokens` tokens after each prompt; a text ends before its end token.

    Text i is sampled under seed + i. `advance` is told of tokens as they are written, and of those
    that a text which ended will not have.
    """
    texts: list[Text] = []
    for first in range(0, len(prompts), batch_size):
        batch = prompts[first : first + batch_size]
        states = [
            SamplingState(
                SamplingParams(temperature=temperature),
                seed=seed + first + i,
                prompt_token_ids=prompt.token_ids,
            )
            for i, prompt in enumerate(batch)
        ]
        for i, token_ids in enumerate(_decode(target, batch, states, num_tokens, advance)):
            texts.append(Text(batch[i], (*batch[i].token_ids, *token_ids), seed + first + i))
    return texts


@torch.inference_mode()
def _decode(
    target: OfflineTarget,
    prompts: Sequence[Prompt],
    states: Sequence[SamplingState],
    num_tokens: int,
    advance: Callable[[int], None],
) -> list[list[int]]:
    ends = {*target.model.config.eos_token_ids, NO_TOKEN}
    written: list[list[int]] = [[] for _ in prompts]
    live = list(range(len(prompts)))
    fed = [list(prompt.token_ids) for prompt in prompts]
    while live:
        hidden = target.feed(live, fed).hidden
        last = torch.tensor([len(ids) for ids in fed]).cumsum(0) - 1
        logits = target.logits(hidden[last.to(target.device)])
        drawn = sample(logits, SamplingBatch.build([states[i] for i in live], target.device))
        for i, token_id in zip(live, drawn.token_ids.tolist(), strict=True):
            if token_id not in ends:
                written[i].append(token_id)
                states[i].append(token_id)
            if token_id in ends or len(written[i]) == num_tokens:
                target.free(i)
            advance(num_tokens - len(written[i]) if token_id in ends else 1)
        live = [i for i in live if target.length(i)]
        fed = [[written[i][-1]] for i in live]
    return written
