# pyright: strict
"""A model's vocabulary as llguidance wants it."""

from pathlib import Path

import llguidance
import msgspec

from specserve.errors import Unsupported
from specserve.models.tokenizer_files import load_tokenizer


class Vocabulary(msgspec.Struct, frozen=True):
    """Which tokens a model has."""

    model: str  # folder or file
    size: int  # ids that grammars know of, the tokenizer's own at least
    end_token_ids: tuple[int, ...]

    def tokens(self) -> llguidance.LLTokenizer:
        """Takes tenths of a second in which no other thread runs. Raises Unsupported."""
        if not self.end_token_ids:
            problem = "the model has no end-of-sequence token, so no text in a form would end"
            raise Unsupported(f"model.target: {problem}")
        tokenizer = load_tokenizer(Path(self.model))
        num_tokens = max(self.size, tokenizer.get_vocab_size())
        ends = list(self.end_token_ids)
        try:
            return llguidance.LLTokenizer(tokenizer.to_str(), n_vocab=num_tokens, eos_token=ends)
        except ValueError as error:
            problem = f"no grammars with its tokenizer: {error}"
            raise Unsupported(f"model.target: {problem}") from error
