"""Rounds of rows that ask for anything: any verification rule, edits, cuts, a grammar, log probs.

And what graphs make of them beside what the reference does.
"""

import functools
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from specserve.backends.cuda.backend import CudaGraphBackend
from specserve.backends.torch.backend import TorchBackend
from specserve.grammars.compiler import CompiledGrammar
from specserve.sampling.draft_probs import PAD_ID, DraftProbs
from specserve.sampling.grammar import GrammarState
from specserve.sampling.state import SamplingState
from specserve.sampling.verification.batch import RowToVerify
from specserve.sampling.verification.method import VerificationMethod
from tests.exactness.grammars import GRAMMARS, compiler
from tests.specserve.sampling.random_probs import likeliest_probs
from tests.specserve.sampling.test_sampling import state

NUM_TOKENS, NUM_KEPT = 301, 9  # more than a nucleus is looked for among at first
CUTS = ({"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 40, "top_p": 0.95})
METHODS = tuple(VerificationMethod)


class Kinds(NamedTuple):
    """What some rows of a round ask for."""

    methods: Sequence[VerificationMethod] = METHODS
    greedy: bool = False
    cuts: bool = False
    edits: bool = False
    grammars: bool = False
    logprobs: bool = False


class RandomRound(NamedTuple):
    logits: torch.Tensor
    rows: list[RowToVerify]
    draft_probs: DraftProbs | None

    def on(self, device: torch.device) -> "RandomRound":
        probs = self.draft_probs
        if probs is not None:
            probs = DraftProbs(probs.ids.to(device), probs.probs.to(device))
        return RandomRound(self.logits.to(device), self.rows, probs)


def random_kinds(source: random.Random) -> Kinds:
    """Each half of the time, or one rule for all."""
    methods = METHODS if source.random() < 0.5 else (source.choice(METHODS),)
    return Kinds(methods, *(source.random() < 0.5 for _ in range(5)))


def random_round(source: random.Random, kinds: Kinds, *, most_rows: int = 9) -> RandomRound:
    """Some of its rows draft nothing, and a few of its logits and distributions are broken."""
    most_drafted = source.choice((0, 1, 3, 6))
    rows = [_random_row(source, kinds, most_drafted) for _ in range(source.randint(1, most_rows))]
    generator = torch.Generator().manual_seed(source.getrandbits(40))
    drafted = torch.tensor([i for row in rows for i in row.drafted], dtype=torch.int64)
    scores = 2 * torch.randn(len(drafted), NUM_TOKENS, generator=generator)
    scores[torch.arange(len(drafted)), drafted] += 8
    verifies = torch.tensor(
        [k < len(row.drafted) for row in rows for k in range(len(row.drafted) + 1)]
    )
    logits = (8 * torch.randn(len(verifies), NUM_TOKENS, generator=generator)).round() / 8  # ties
    logits[verifies] += scores
    if len(drafted) and source.random() < 0.5:
        logits[~verifies] += scores[0]  # what was drafted for others is likely behind a block, too
    is_tested = torch.tensor(
        [row.verified_by is not VerificationMethod.COUPLED for row in rows for _ in row.drafted],
        dtype=torch.bool,
    )
    draft_probs = likeliest_probs(scores.softmax(1), NUM_KEPT)
    draft_probs = DraftProbs(draft_probs.ids[is_tested], draft_probs.probs[is_tested])
    _break_some(source, logits, draft_probs)
    needs_none = not len(draft_probs.ids) and source.random() < 0.5
    return RandomRound(logits, rows, None if needs_none else draft_probs)


def _break_some(source: random.Random, logits: torch.Tensor, draft_probs: DraftProbs) -> None:
    for _ in range(3):
        place, value = source.randrange(len(logits)), source.choice((torch.nan, torch.inf))
        match source.randrange(14):
            case 0:
                logits[place, source.choice((0, 3))] = value
            case 1:
                logits[place] = -torch.inf
        if not len(draft_probs.ids):
            continue
        place = source.randrange(len(draft_probs.ids))
        match source.randrange(14):
            case 0:
                draft_probs.probs[place] *= 1.1
            case 1:
                draft_probs.ids[place, 0] = NUM_TOKENS
            case 2:
                draft_probs.ids[place], draft_probs.probs[place] = PAD_ID, 0


def _random_row(source: random.Random, kinds: Kinds, most_drafted: int) -> RowToVerify:
    made = _random_state(source, kinds)
    count = source.randint(0, most_drafted)
    return RowToVerify(
        source.choice(kinds.methods),
        made,
        _random_path(source, made, count),
        round_id=source.randrange(99),
        branch=source.randrange(9),
    )


def _random_state(source: random.Random, kinds: Kinds) -> SamplingState:
    fields: dict = {"temperature": source.choice([0.3, 0.8, 1.0, 1.4])}
    if kinds.greedy and source.random() < 0.5:
        fields["temperature"] = 0.0
    if kinds.cuts and source.random() < 0.7:
        fields |= source.choice(CUTS)
    if kinds.logprobs and source.random() < 0.5:
        fields["logprobs"] = source.choice([0, 1, 2, 5, 20])
    end: tuple[int, ...] = ()
    if kinds.edits and source.random() < 0.7:
        fields |= _random_edits(source)
        end = source.choice(((), (1,), (1, 9)))
    made = state(
        seed=source.getrandbits(64),
        prompt=_tokens(source, source.choice((1, 5, 40, 200))),
        output=_tokens(source, source.choice((0, 0, 1, 30))),
        sample_index=source.randrange(3),
        end=end,
        **fields,
    )
    if kinds.grammars and source.random() < 0.5:
        place = source.choice(_compiled()).begin()
        for _ in range(source.randrange(4)):
            if not place.is_over:
                place.append(source.choice(_allowed(place)))
        made.grammar = place
    return made


def _random_edits(source: random.Random) -> dict:
    found: dict = {}
    if source.random() < 0.4:
        found["repetition_penalty"] = source.choice((0.5, 1.3, 3.0))
    if source.random() < 0.4:  # strong ones, that decide about what is drafted twice
        found |= {"presence_penalty": source.uniform(-2, 2), "frequency_penalty": 2.0}
    if source.random() < 0.4:
        ids = _tokens(source, source.choice((1, 3, 70)))
        found["logit_bias"] = {i: source.choice((-100.0, -1.5, 0.0, 2.25)) for i in ids}
    if source.random() < 0.4:
        found |= {"min_tokens": source.choice((1, 2, 33)), "stop_token_ids": (5, 0)}
    return found


def _random_path(source: random.Random, made: SamplingState, count: int) -> list[int]:
    """Drafted tokens, some of them twice; mostly such as a grammar allows."""
    path: list[int] = []
    place = None if made.grammar is None else made.grammar.fork()
    while len(path) < count:
        token_id = source.choice(path) if path and source.random() < 0.4 else _tokens(source, 1)[0]
        if place is not None:
            allowed = _allowed(place)
            if allowed and source.random() < 0.8:
                token_id = source.choice(allowed)
            place.append(token_id)
        path.append(token_id)
    return path


def _tokens(source: random.Random, count: int) -> list[int]:
    return [source.randrange(NUM_TOKENS) for _ in range(count)]


def _allowed(place: GrammarState) -> list[int]:
    bits = place.allowed(())
    if bits is None:
        return []
    return np.unpackbits(bits, bitorder="little").nonzero()[0].tolist()


@functools.cache
def _compiled() -> list[CompiledGrammar]:
    """Of a vocabulary that is smaller than the logits, as a padded one is."""
    compiled = compiler()
    return [compiled.compile(grammar).result() for grammar in GRAMMARS]


def compare_rounds(
    device: torch.device, source: random.Random, num_rounds: int, *, most_rows: int = 9
) -> int:
    """Graphs of `device` and the reference there, of random rounds; how many tokens stood.

    The same to the last bit, log probabilities included.
    """
    captured, plain, num_accepted = CudaGraphBackend(device), TorchBackend(device), 0
    for _ in range(num_rounds):
        given = random_round(source, random_kinds(source), most_rows=most_rows).on(device)
        before = given.logits.clone()
        found = captured.verify(*given)
        assert found == plain.verify(*given)
        assert torch.equal(given.logits.nan_to_num(), before.nan_to_num())
        num_accepted += sum(found.num_accepted)
    assert len(captured.verification.graphs) > num_rounds // 4
    return num_accepted
