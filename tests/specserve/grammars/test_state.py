"""A place in a grammar is where its tokens lead, whoever moved the matcher before."""

import random

import numpy as np
import pytest

from specserve.errors import InvalidField
from specserve.grammars.compiler import GrammarCompiler
from specserve.sampling.grammar import completing
from specserve.types import Grammar, GrammarKind
from tests.exactness.grammars import END, GRAMMARS, TOKENS, compiler

LETTERS = Grammar(GrammarKind.REGEX, "[ab]{2,4}", "letters")
A, B, C, AB = (TOKENS.index(text) for text in (b"a", b"b", b"c", b"ab"))


@pytest.fixture(scope="module")
def grammars() -> GrammarCompiler:
    return compiler()


def allowed(state, held_back=()) -> set[int]:
    bits = state.allowed(held_back)
    return set(np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist())


def test_ends_are_allowed_where_the_text_may_end_and_held_back_while_it_may_go_on(grammars):
    state = grammars.compile(LETTERS).result().begin()
    assert state.end_token_ids == (END,)
    assert allowed(state) == {A, B, AB}
    state.append(AB)
    assert allowed(state) == {A, B, AB, END}
    assert allowed(state, held_back=(END,)) == {A, B, AB}
    assert not state.is_over
    assert completing(state, (AB, A)) == 1
    state.append(AB)
    assert state.is_over
    assert allowed(state, held_back=(END,)) == {END}  # there is nothing else


def test_an_end_token_is_an_end(grammars):
    state = grammars.compile(LETTERS).result().begin()
    assert completing(state, (A, B, END)) == 3
    assert completing(state, (A, B, A)) is None


def test_behind_a_forbidden_token_nothing_is_forbidden(grammars):
    state = grammars.compile(LETTERS).result().begin()
    assert state.num_allowed((A, C, A)) == 1
    lost = state.fork()
    for token_id in (A, C, B):
        lost.append(token_id)
    assert lost.allowed(()) is None
    assert not lost.is_over
    assert allowed(state) == {A, B, AB}  # as before


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind)
def test_forks_in_any_order_are_where_fresh_ones_are(grammars, grammar):
    compiled, rng = grammars.compile(grammar).result(), random.Random(3)
    own, tokens = compiled.begin(), []
    for _ in range(12):
        forks = []
        for _ in range(3):
            fork, path = own.fork(), []
            for _ in range(rng.randint(0, 3)):
                choices = sorted(allowed(fork)) if fork.allowed(()) is not None else [A]
                path.append(rng.choice([*choices, rng.randrange(2, 64)]))
                fork.append(path[-1])
            forks.append((fork, path))
        rng.shuffle(forks)
        for fork, path in forks:
            fresh = compiled.begin()
            for token_id in (*tokens, *path):
                fresh.append(token_id)
            expected = fresh.allowed(())
            found = fork.allowed(())
            assert (found is None) == (expected is None)
            assert found is None or found.tolist() == expected.tolist()
            assert fork.is_over == fresh.is_over
        if own.is_over:
            return
        tokens.append(rng.choice(sorted(allowed(own, held_back=(END,)))))
        own.append(tokens[-1])


def test_what_these_tokens_cannot_have_is_refused_by_name(grammars):
    unknown = Grammar(GrammarKind.GRAMMAR, 'start: "a" <|nobody|>', "structured_outputs.grammar")
    with pytest.raises(InvalidField, match=r"structured_outputs.grammar: .*unknown special token"):
        grammars.compile(unknown).result()
    impossible = Grammar(GrammarKind.REGEX, "[a&&b]", "regex")
    with pytest.raises(InvalidField, match=r"regex: .*there is no text that it allows"):
        grammars.compile(impossible).result()
