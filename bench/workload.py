# pyright: strict
"""Which prompts are continued by `bench.engine`, and the held-out texts of the package.

Every batch mixes prompts of different kinds and lengths, because that is what is served;
transformers pads them to the longest.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import specserve

PROMPT_FOLDER = Path(specserve.__file__).parent / "assets" / "prompts"
DOMAINS = ("code", "prose")


class Workload:
    """Draws batches of prompts in a fixed order, so that equal arguments give equal prompts."""

    def __init__(self, prompts: Sequence[list[int]]) -> None:
        """`prompts` as token ids, the same for all arms."""
        self._prompts = prompts
        self._next = 0

    @property
    def num_prompts(self) -> int:
        return len(self._prompts)

    def batch(self, size: int, max_len: int) -> list[list[int]]:
        """The next `size` prompts, starting over when they run out; later ones are cut shorter.

        Cut prompts still differ in length, by up to a third, and end as they ended.
        """
        chosen: list[list[int]] = []
        for i in range(size):
            longest = max_len - (i * max_len // (3 * size) if size > 1 else 0)
            chosen.append(self._prompts[(self._next + i) % len(self._prompts)][-max(1, longest) :])
        self._next = (self._next + size) % len(self._prompts)
        return chosen

    def long_prompt(self, num_tokens: int) -> list[int]:
        """As many prompts in a row as make `num_tokens` tokens."""
        tokens: list[int] = []
        while len(tokens) < num_tokens:
            tokens += self.batch(1, num_tokens)[0]
        return tokens[:num_tokens]


def read_texts(domain: str) -> list[str]:
    """The held-out prompts of a domain, as text."""
    lines = (PROMPT_FOLDER / f"{domain}.jsonl").read_text(encoding="utf-8").splitlines()
    return [str(json.loads(line)["text"]) for line in lines]
