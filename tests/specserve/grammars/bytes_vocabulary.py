"""A vocabulary of bytes and of a few tokens that are special, and what grammars allow by it."""

from collections.abc import Sequence
from pathlib import Path

import llguidance
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from specserve.grammars.compiler import Vocabulary, compiled
from specserve.types import Grammar

END = "<end>"


class BytesVocabulary:
    """`special`: texts that are one token each, which no spelling stands for."""

    def __init__(self, folder: Path, special: Sequence[str] = ()) -> None:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            special_tokens=["<more>", END], initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(["the the the"], trainer)
        tokenizer.add_tokens([AddedToken(mark, special=False) for mark in special])
        tokenizer.save(str(folder / "tokenizer.json"))
        self.tokenizer = tokenizer
        self.tokens = Vocabulary(str(folder), tokenizer.get_vocab_size(), (1,)).tokens()

    def allows(self, grammar: Grammar, text: str, *, is_whole: bool = True) -> bool:
        """The text, and that it ends there; not `is_whole`: that it begins so."""
        ids = self.tokenizer.encode(text).ids
        matcher: llguidance.LLMatcher = compiled(grammar, self.tokens).deep_copy()
        if matcher.try_consume_tokens(ids) != len(ids):
            return False
        return matcher.is_accepting() or not is_whole

    def allows_spelt(self, grammar: Grammar, text: str) -> bool:
        """The same of a text that is not special, whatever it says."""
        ids = [self.tokenizer.token_to_id(char) for char in text]
        matcher: llguidance.LLMatcher = compiled(grammar, self.tokens).deep_copy()
        return matcher.try_consume_tokens(ids) == len(ids)
