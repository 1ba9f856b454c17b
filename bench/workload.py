# pyright: strict
"""Which prompts are continued: held-out texts of the package, as token ids, the same for all arms.

Every batch mixes code and prose and prompts of different lengths, because that is what is served;
transformers pads them to the longest.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

import specserve

PROMPT_FOLDER = Path(specserve.__file__).parent / "assets" / "prompts"
DOMAINS = ("code", "prose")


class Workload:
    """Draws batches of prompts in a fixed order, so that equal arguments give equal prompts."""

    def __init__(self, target: Path, num_prompts: int) -> None:
        """The first `num_prompts` held-out prompts, domains alternating, in the target's tokens."""
        tokenizer: Any = Tokenizer.from_file(str(target / "tokenizer.json"))
        self._prompts = [list(tokenizer.encode(text).ids) for text in _texts(num_prompts)]
        self._next = 0

    @property
    def num_prompts(self) -> int:
        return len(self._prompts)

    def batch(self, size: int, max_len: int) -> list[list[int]]:
        """The next `size` prompts, starting over when they run out; later ones are cut shorter.

        Cut prompts still differ in length, by up to a third.
        """
        chosen: list[list[int]] = []
        for i in range(size):
            longest = max_len - (i * max_len // (3 * size) if size > 1 else 0)
            chosen.append(self._prompts[(self._next + i) % len(self._prompts)][: max(1, longest)])
        self._next = (self._next + size) % len(self._prompts)
        return chosen

    def long_prompt(self, num_tokens: int) -> list[int]:
        """As many prompts in a row as make `num_tokens` tokens."""
        tokens: list[int] = []
        while len(tokens) < num_tokens:
            tokens += self.batch(1, num_tokens)[0]
        return tokens[:num_tokens]


def _texts(count: int) -> list[str]:
    by_domain = [read_texts(domain) for domain in DOMAINS]
    alternating = [text for texts in zip(*by_domain, strict=False) for text in texts]
    return alternating[:count]


def read_texts(domain: str) -> list[str]:
    """The held-out prompts of a domain, as text."""
    lines = (PROMPT_FOLDER / f"{domain}.jsonl").read_text(encoding="utf-8").splitlines()
    return [str(json.loads(line)["text"]) for line in lines]
