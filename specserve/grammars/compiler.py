# pyright: strict
"""Grammars compiled for one model's tokens, beside the loop that samples with them.

A grammar was checked at the door (`specserve.grammars.checker`), so what is compiled here is known
to be compiled within its limits.
"""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import llguidance
import msgspec

from specserve.errors import Unsupported
from specserve.grammars.source import LIMITS, source_of, unusable
from specserve.grammars.state import PlaceInGrammar
from specserve.models.config import ModelSpec
from specserve.models.tokenizer_files import load_tokenizer
from specserve.types import Grammar

# More than the checker has, so that what did not exhaust its stack does not exhaust this one.
_STACK_BYTES = 64 * 1024 * 1024
_NUM_KEPT = 64  # compiled grammars


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


@dataclass(frozen=True)
class CompiledGrammar:
    """For any number of samples."""

    matcher: llguidance.LLMatcher  # at the beginning, and left there
    end_token_ids: tuple[int, ...]
    vocab_size: int

    def begin(self) -> PlaceInGrammar:
        """The place of a sample that has no token yet."""
        return PlaceInGrammar(self.matcher, self.end_token_ids, self.vocab_size)


class GrammarCompiler:
    """Of one model. Compiles in a thread of its own, one grammar at a time."""

    def __init__(self, read_tokens: Callable[[], llguidance.LLTokenizer]) -> None:
        """`read_tokens` is asked by the first grammar; it may raise Unsupported."""
        self._read_tokens = read_tokens
        self._kept: OrderedDict[Grammar, Future[CompiledGrammar]] = OrderedDict()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammars")

    @functools.cached_property
    def _tokens(self) -> llguidance.LLTokenizer:
        return self._read_tokens()

    def compile(self, grammar: Grammar) -> Future[CompiledGrammar]:
        """The result raises InvalidField for a grammar that these tokens cannot have.

        And Unsupported where they can have none.
        """
        known = self._kept.get(grammar)
        if known is None:
            known = self._kept[grammar] = self._submit(grammar)
            if len(self._kept) > _NUM_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(grammar)
        return known

    def _submit(self, grammar: Grammar) -> Future[CompiledGrammar]:
        usual = threading.stack_size(_STACK_BYTES)
        try:
            return self._pool.submit(self._compile, grammar)  # which may begin the thread
        finally:
            threading.stack_size(usual)

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        tokens = self._tokens
        matcher = compiled(grammar, tokens)
        return CompiledGrammar(matcher, tuple(tokens.eos_tokens), tokens.vocab_size)


def compiler_of(model: Path, spec: ModelSpec) -> GrammarCompiler:
    """For the tokens of a model's folder or file."""
    return GrammarCompiler(Vocabulary(str(model), spec.vocab_size, spec.eos_token_ids).tokens)


def compiled(grammar: Grammar, tokens: llguidance.LLTokenizer) -> llguidance.LLMatcher:
    """At the beginning of a text, with what the first mask needs. Raises InvalidField."""
    try:
        source = source_of(grammar, tokens)
    except ValueError as error:
        raise unusable(grammar, str(error)) from error
    matcher = llguidance.LLMatcher(tokens, source, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()  # which takes longest: copies have what it found
    if matcher.is_error():
        raise unusable(grammar, matcher.get_error())
    return matcher
