"""Unseeded answers from the real loop against the distribution they must have.

The distribution is enumerated from the target's logits alone: one forward a prefix, without
batches, chunks, caches or drafts. The answers come from a loop that has all of these at once, and
other requests between them.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from specserve.audit.chi_square import Fit
from specserve.audit.sequence_distribution import Prefix, SequenceDistribution
from specserve.drafters.load import load_drafter
from specserve.drafters.ngram import NgramDrafter
from specserve.drafters.protocol import Drafter
from specserve.drafters.weights import TargetWeights
from specserve.models.transformer import Transformer
from specserve.sampling.verification.admission import Allocator
from specserve.sampling.verification.method import VerificationMethod
from specserve.types import Request, SamplingParams
from target_node.planning.round_prices import RoundPrices
from tests.exactness.speculative import MoodyPace, RandomBudget
from tests.golden import Session
from tests.specserve.drafters.checkpoints import DSPARK, options, write_drafter, write_target
from tests.specserve.models.checkpoints import QWEN3, load, write_checkpoint
from tests.target_node.in_process import InProcessTarget

VOCAB_SIZE = 24  # more than the 16 tokens that a draft distribution keeps
DEPTH = 3  # tokens of an answer that are tested: the first is never drafted
WIDTH = 3  # tokens that the tree names after each prefix
MAX_LEN = 64


# --- models ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Models:
    """A target of few tokens, and drafters for it by name."""

    weights: TargetWeights
    model: Transformer
    drafters: dict[str, Callable[[], Drafter]]


def make_models(folder: Path) -> Models:
    target = write_target(folder / "target", vocab_size=VOCAB_SIZE, max_position_embeddings=MAX_LEN)
    block, chain = (
        options(num_context_tokens=8192),
        options(num_context_tokens=8192, gamma=3, max_positions=MAX_LEN),
    )
    write_drafter(folder / "dspark", DSPARK, vocab_size=VOCAB_SIZE, mask_token_id=VOCAB_SIZE - 1)
    write_checkpoint(
        folder / "small",
        QWEN3,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=MAX_LEN,
        num_hidden_layers=1,
    )
    return Models(
        weights=target,
        model=load(target.folder),
        drafters={
            "dspark": partial(load_drafter, folder / "dspark", target, block),
            "language model": partial(load_drafter, folder / "small", target, chain),
            "the target itself": partial(load_drafter, target.folder, target, chain),
            "ngram": partial(NgramDrafter, gamma=3, shortest=1),
        },
    )


# --- what is asked ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """A prompt and how its answers are sampled."""

    prompt: tuple[int, ...]
    fields: dict = field(default_factory=dict)

    def next_probs(self, logits: torch.Tensor, generated: Prefix) -> torch.Tensor:
        """The distribution of the next token, float64 [V], spelled out for the fields used here."""
        logits = logits.double().clone()
        for token_id in set(generated):
            logits[token_id] -= self.fields.get("presence_penalty", 0.0)
            logits[token_id] -= self.fields.get("frequency_penalty", 0.0) * generated.count(
                token_id
            )
        for token_id, bias in self.fields.get("logit_bias", {}).items():
            logits[token_id] += bias
        logits /= self.fields.get("temperature", 1.0)
        if top_k := self.fields.get("top_k", 0):
            logits[logits < logits.topk(top_k).values[-1]] = float("-inf")
        return logits.softmax(dim=0)

    def distribution(self, model: Transformer, depth: int = DEPTH) -> SequenceDistribution:
        """The distribution of the first `depth` tokens."""
        nodes: dict[Prefix, dict[int, float]] = {}
        level: list[Prefix] = [()]
        for _ in range(depth):
            for prefix in level:
                probs = self.next_probs(_last_logits(model, (*self.prompt, *prefix)), prefix)
                found = probs.topk(WIDTH)
                nodes[prefix] = dict(
                    zip(found.indices.tolist(), found.values.tolist(), strict=True)
                )
            level = [(*prefix, token_id) for prefix in level for token_id in nodes[prefix]]
        return SequenceDistribution(nodes)


@torch.inference_mode()
def _last_logits(model: Transformer, token_ids: tuple[int, ...]) -> torch.Tensor:
    session = Session(model, MAX_LEN)
    hidden, _ = session.feed(torch.tensor(token_ids))
    return session.logits(hidden[-1:])[0]


def _prompt(length: int) -> tuple[int, ...]:
    rng = random.Random(length)
    return tuple(rng.choices(range(2, VOCAB_SIZE - 1), k=length))


# Truncated; whole; and with logits that change along the drafted path.
QUESTIONS = (
    Question(_prompt(5), {"temperature": 0.4, "top_k": 3}),
    Question(_prompt(13), {"temperature": 0.3}),
    Question(
        _prompt(22),
        {
            "temperature": 0.4,
            "top_k": 3,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.3,
            "logit_bias": {5: 0.5},
        },
    ),
)


# --- the loop --------------------------------------------------------------------------------


def _any_length() -> Allocator:
    return RandomBudget(11)


@dataclass(frozen=True)
class Engine:
    """A loop to ask: who drafts, how drafts are verified, how many are verified."""

    drafter: str
    method: VerificationMethod
    budget: Callable[[], Allocator] = _any_length
    wrap: Callable[[Drafter], Drafter] | None = None
    prices: Callable[[], RoundPrices] | None = None  # None: nothing costs anything
    num_blocks: int = 2000
    block_size: int = 4
    max_batch_tokens: int = 300


@dataclass
class Answers:
    """The tokens of all samples of each question, those of a request side by side."""

    tokens: list[list[list[int]]]
    num_drafted: int
    num_accepted: int
    num_preemptions: int


def ask(models: Models, engine: Engine, num_samples: int, *, seed: int = 0) -> Answers:
    """About `num_samples` answers to each question, from one loop.

    128 rows a round, whose drafts compete for places; requests of two to eight samples, of which
    some share a prompt's blocks and others compute it in chunks; seeded and greedy ones between.
    """
    drafter = models.drafters[engine.drafter]()
    target = InProcessTarget(
        models.model,
        draft=drafter if engine.wrap is None else engine.wrap(drafter),
        default_method=engine.method,
        budget=engine.budget(),
        prices=None if engine.prices is None else engine.prices(),
        pace=None if engine.prices is None else MoodyPace(9),
        may_pause=engine.prices is not None,
        num_blocks=engine.num_blocks,
        block_size=engine.block_size,
        max_batch_rows=128,
        max_batch_tokens=engine.max_batch_tokens,
    )
    return answers_of(target, num_samples, seed=seed)


def answers_of(
    target: InProcessTarget,
    num_samples: int,
    *,
    seed: int,
    depth: int = DEPTH,
) -> Answers:
    """About `num_samples` answers to each question, of at least `depth` tokens."""
    rng = random.Random(seed)
    asked: dict[str, int] = {}
    counts = [0] * len(QUESTIONS)
    while min(counts) < num_samples:
        place = counts.index(min(counts))
        request = _request(f"r{len(asked)}", QUESTIONS[place], rng, depth)
        asked[request.request_id] = place
        counts[place] += request.sampling.n
        target.submit(request)
        if rng.random() < 0.1:
            target.submit(_bystander(f"b{len(asked)}", rng))
    target.run_until_idle(limit=100_000)
    tokens: list[list[list[int]]] = [[] for _ in counts]
    for (name, _), answer in sorted(target.tokens.items()):
        if name in asked:
            tokens[asked[name]].append(answer)
    stats = [target.ends[name].stats for name in asked]
    return Answers(
        tokens,
        num_drafted=sum(s.num_drafted_tokens for s in stats),
        num_accepted=sum(s.num_accepted_tokens for s in stats),
        num_preemptions=target.scheduler.num_preemptions,
    )


def _request(name: str, question: Question, rng: random.Random, depth: int) -> Request:
    sampling = SamplingParams(
        n=rng.choice([2, 4, 8]),
        # Beyond what is tested: a draft that would fill the answer to its end is never made.
        max_tokens=depth + rng.randint(0, 2),
        ignore_eos=True,
        **question.fields,
    )
    return Request(
        request_id=name,
        prompt_token_ids=list(question.prompt),
        sampling=sampling,
        seed=rng.randrange(2**64),
        cache_salt=rng.choice(["", "", "", "", "", name]),
        max_verify_len=rng.choice([None, None, 0, 1, 2]),
        min_tokens_per_s=1e6 if sampling.n == 4 else None,  # always behind
    )


def _bystander(name: str, rng: random.Random) -> Request:
    """Judged by equality, in the same rounds."""
    return Request(
        request_id=name,
        prompt_token_ids=list(_prompt(rng.randint(1, 12))),
        sampling=SamplingParams(max_tokens=6, temperature=rng.choice([0.0, 1.0])),
        seed=rng.randrange(2**64),
        seeded_by_user=True,
    )


def fits(distributions: list[SequenceDistribution], answers: Answers) -> list[Fit]:
    """Of the answers to each question, and of neighbouring samples jointly."""
    pairs = zip(distributions, answers.tokens, strict=True)
    return [
        fit
        for distribution, tokens in pairs
        for fit in (distribution.fit(tokens), distribution.pair_fit(tokens))
    ]
