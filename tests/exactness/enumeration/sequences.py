"""Distributions of whole outputs: of rounds that follow one another, and of plain decoding."""

import itertools
from collections import defaultdict

from specserve.sampling.verification.commit import commit_of
from tests.exactness.enumeration.one_round import outcomes


def all_contexts(toy, num_tokens):
    """Everything that may have been generated when the next token is to come."""
    tokens = range(toy.num_tokens)
    return [c for n in range(num_tokens) for c in itertools.product(tokens, repeat=n)]


def rounds_of(toy, method, num_tokens):
    """Every round that may occur within the first `num_tokens` tokens."""
    return outcomes(toy, method, all_contexts(toy, num_tokens))


def speculative_distribution(toy, rounds, num_tokens, verify_len):
    """The distribution of the first `num_tokens` tokens, fewer after an end token, as {tokens:
    prob}.

    `rounds` as made by `rounds_of`. `verify_len(context, outcome)` chooses the length of the round
    at `context` from the outcome of the round before, (num_accepted, next_token), None at first.
    """
    distribution = defaultdict(float)
    running = {((), None): 1.0}
    while running:
        following = defaultdict(float)
        for (context, outcome), prob in running.items():
            choices = rounds[context, verify_len(context, outcome)]
            for chance, drafted, num_accepted, next_token in choices:
                commit = commit_of(
                    drafted,
                    num_accepted,
                    next_token,
                    end_token_ids=toy.state(()).end_token_ids,
                    num_held_back=toy.fields.get("min_tokens", 0) - len(context),
                    room=num_tokens - len(context),
                )
                output = context + tuple(commit.token_ids)
                if commit.finish_reason is None:
                    following[output, (num_accepted, next_token)] += prob * chance
                else:
                    distribution[output] += prob * chance
        running = following
    return distribution


def plain_distribution(toy, num_tokens):
    """The same of plain decoding."""
    distribution = defaultdict(float)
    running = {(): 1.0}
    ends = toy.state(()).end_token_ids
    while running:
        following = defaultdict(float)
        for context, prob in running.items():
            for token_id, chance in enumerate(toy.target_distribution(context).tolist()):
                output = (*context, token_id)
                if len(output) == num_tokens or token_id in ends:
                    distribution[output] += prob * chance
                elif chance:
                    following[output] += prob * chance
        running = following
    return distribution


def total_variation(first, second):
    return sum(abs(first.get(o, 0.0) - second.get(o, 0.0)) for o in {*first, *second}) / 2
