"""What a drafter is worth along the target's own texts: confidences, and whether drafts stand.

At anchors every few tokens of a text the drafter's context is extended by what the target saw, a
block is drafted through the `Drafter` protocol, and the target verifies it in one forward, which is
then rolled back. So a block is verified in contexts of the target's own distribution, and nothing
drafted enters them.

Drafted tokens need not be accepted or rejected by chance: the chance itself is recorded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draft_node.calibration.texts import Text
from draft_node.offline_target import OfflineTarget
from specserve.drafters.probs_confidence import FeatureRecorder, Floats
from specserve.drafters.protocol import ContextUpdate, DraftBatch, Drafter, SpeculationBatch
from specserve.errors import Unsupported
from specserve.noise import OnceKeys
from specserve.sampling.batch import SamplingBatch
from specserve.sampling.draft_sampler import Coupled, DraftSampler
from specserve.sampling.draft_sampler import Sampled as SampledDrafts
from specserve.sampling.sampling import sample, target_distributions
from specserve.sampling.state import SamplingState
from specserve.sampling.verification.method import VerificationMethod, verified_by
from specserve.sampling.verification.ratio import accept_probs
from specserve.settings.config import NUM_KEPT
from specserve.types import SamplingParams

_MAX_LOGIT = 16.0  # of a confidence: float32 tells it no further from 1


@dataclass(frozen=True)
class Conditions:
    """Under which sampling, and how densely, drafts are looked at."""

    method: VerificationMethod
    temperature: float
    num_kept: int = NUM_KEPT  # of a draft distribution, in the rejection family
    stride: int = 2  # tokens from one anchor to the next
    batch_size: int = 16  # texts at a time

    @property
    def by_equality(self) -> bool:
        method = verified_by(self.method, is_greedy=self.temperature == 0)
        return method is VerificationMethod.COUPLED


@dataclass(frozen=True)
class Samples:
    """N drafted blocks of G tokens."""

    texts: NDArray[np.int64]  # [N], which text a block belongs to
    logits: Floats  # [N, G], of the drafter's confidences
    features: Floats | None  # [N, G, 2] of `confidence_features`, with a `FeatureRecorder` alone
    stands: Floats  # [N, G], P(token k stands | those before it do)
    expected: Floats  # [N, G], the same before token k is drawn
    lengths: NDArray[np.int64]  # [N], tokens that count: up to an end token

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which positions count, [N, G]."""
        return np.arange(self.stands.shape[1]) < self.lengths[:, None]

    @property
    def reached(self) -> Floats:
        """P(all tokens before k stand), [N, G]; 0 where position k does not count."""
        before = np.ones_like(self.stands)
        before[:, 1:] = self.stands.cumprod(axis=1)[:, :-1]
        return before * self.counted

    @property
    def survived(self) -> Floats:
        """P(tokens 0..k stand), as known before token k is drawn: [N, G]."""
        return self.reached * self.expected

    @property
    def mean_survivals(self) -> list[float]:
        """P(positions 0..k stand), by position, up to the first that none counts at."""
        counts = self.counted.sum(axis=0)
        known = counts[: int(np.cumprod(counts > 0).sum())]
        sums = (self.survived * self.counted).sum(axis=0)[: len(known)]
        return np.minimum.accumulate(sums / known).round(4).tolist()

    @property
    def accept_len(self) -> float:
        """Mean tokens of a round, the bonus or recovery token included."""
        return 1 + float(self.survived.sum(axis=1).mean())

    def of_texts(self, wanted: NDArray[np.bool_]) -> "Samples":
        """The blocks of the texts that are `wanted`, bool [number of texts]."""
        rows = wanted[self.texts]
        return Samples(
            self.texts[rows],
            self.logits[rows],
            None if self.features is None else self.features[rows],
            self.stands[rows],
            self.expected[rows],
            self.lengths[rows],
        )


def collect(
    target: OfflineTarget,
    drafter: Drafter,
    texts: Sequence[Text],
    conditions: Conditions,
    *,
    recorder: FeatureRecorder | None = None,
    advance: Callable[[int], None] = lambda num_anchors: None,
) -> Samples:
    """Draft and verify at every anchor of all texts; `recorder` is one the drafter asks.

    Raises `Unsupported` for a drafter that gives no confidences, or none that are numbers, and for
    texts without an anchor.
    `advance` is told of finished anchors; `count_anchors` says how many there will be.
    """
    blocks: list[Samples] = []
    for first in range(0, len(texts), conditions.batch_size):
        batch = texts[first : first + conditions.batch_size]
        replay = _Replay(target, drafter, batch, conditions, recorder)
        while replay.live:
            num_live = len(replay.live)
            blocks.append(_numbered(replay.next_blocks(), first))
            advance(num_live)
    if not blocks:
        raise Unsupported("the target ended every text at once: there is nothing to measure")
    return _joined(blocks)


def count_anchors(texts: Sequence[Text], stride: int) -> int:
    return sum(-(-text.num_generated // stride) for text in texts)


class _Replay:
    """Some texts side by side, each up to its next anchor; row i is text i."""

    def __init__(
        self,
        target: OfflineTarget,
        drafter: Drafter,
        texts: Sequence[Text],
        conditions: Conditions,
        recorder: FeatureRecorder | None,
    ) -> None:
        self._target, self._drafter, self._texts = target, drafter, texts
        self._conditions, self._recorder = conditions, recorder
        self.live = [i for i, text in enumerate(texts) if text.num_generated]
        self._round = 0
        if self.live:
            self._follow({i: len(texts[i].prompt.token_ids) for i in self.live})

    def next_blocks(self) -> Samples:
        """One block for each live text; then on to their next anchors."""
        rows, states = list(self.live), [self._state(i) for i in self.live]
        anchors = [self._texts[i].token_ids[self._target.length(i)] for i in rows]
        drafted = self._drafter.draft(
            DraftBatch(rows, torch.tensor(anchors, device=self._target.device)),
            self._sampler(states),
        )
        if drafted.confidences is None:
            raise Unsupported("the drafter gives no confidences to calibrate")
        self._refuse_nan("confidences", drafted.confidences)
        features = self._recorder.take() if self._recorder is not None else None
        stands, expected = self._verify(rows, anchors, states, drafted)
        self._refuse_nan("draft_probs", expected)
        confidences = drafted.confidences.double().cpu().numpy()
        found = Samples(
            np.array(rows),
            np.clip(_logit(confidences), -_MAX_LOGIT, _MAX_LOGIT),
            None if features is None else features.double().cpu().numpy(),
            stands.double().cpu().numpy(),
            expected.double().cpu().numpy(),
            self._lengths(drafted),
        )
        self._advance()
        return found

    def _refuse_nan(self, what: str, numbers: Tensor) -> None:
        """Weights may be finite and what they compute too large nevertheless."""
        if not bool(numbers.isfinite().all()):
            raise Unsupported(f"the drafter ({self._drafter.name}): its {what} are NaN")

    def _advance(self) -> None:
        """To the next anchors; texts that have none leave."""
        self._round += 1
        ends: dict[int, int] = {}
        for i in self.live:
            end = self._target.length(i) + self._conditions.stride
            if end < len(self._texts[i].token_ids):
                ends[i] = end
            else:
                self._target.free(i)
                self._drafter.free(i)
        self.live = list(ends)
        if ends:
            self._follow(ends)

    def _follow(self, ends: dict[int, int]) -> None:
        """Feed target and drafter the texts up to `ends`."""
        rows = list(ends)
        starts = [self._target.length(i) for i in rows]
        pieces = [self._texts[i].token_ids[s : ends[i]] for i, s in zip(rows, starts, strict=True)]
        fed = self._target.feed(rows, pieces)
        spec = self._drafter.features
        token_ids = torch.tensor([t for piece in pieces for t in piece], device=self._target.device)
        features = None
        if spec is not None and fed.residuals is not None:
            features = spec.project(fed.residuals)
        counts = [len(piece) for piece in pieces]
        self._drafter.extend(ContextUpdate(rows, starts, counts, token_ids, features))

    def _state(self, row: int) -> SamplingState:
        """Of the token after the anchor."""
        text = self._texts[row]
        return SamplingState(
            SamplingParams(temperature=self._conditions.temperature),
            seed=text.seed,
            prompt_token_ids=text.token_ids[: self._target.length(row) + 1],
        )

    def _sampler(self, states: Sequence[SamplingState]) -> DraftSampler:
        device = self._target.device
        temperatures = torch.full((len(states),), self._conditions.temperature, device=device)
        seeds = [state.seed_bits for state in states]
        if self._conditions.by_equality:
            indices = torch.zeros(len(states), dtype=torch.int64, device=device)
            return Coupled(temperatures, torch.tensor(seeds, device=device), indices)
        zeros = [0] * len(states)
        keys = OnceKeys.build(seeds, zeros, [self._round] * len(states), zeros, zeros, device)
        return SampledDrafts(temperatures, keys, self._conditions.num_kept)

    def _verify(
        self,
        rows: Sequence[int],
        anchors: Sequence[int],
        states: Sequence[SamplingState],
        drafted: SpeculationBatch,
    ) -> tuple[Tensor, Tensor]:
        """`Samples.stands` and `Samples.expected`, [B, G] each; the target is as it was after."""
        lengths = [self._target.length(i) for i in rows]
        paths = drafted.token_ids.tolist()
        blocks = [[anchor, *path[:-1]] for anchor, path in zip(anchors, paths, strict=True)]
        fed = self._target.feed(rows, blocks)
        for row, length in zip(rows, lengths, strict=True):
            self._target.truncate(row, length)
        along = [
            s for state, path in zip(states, paths, strict=True) for s in state.along(path[:-1])
        ]
        batch = SamplingBatch.build(along, self._target.device)
        logits = self._target.logits(fed.hidden)
        if self._conditions.by_equality or drafted.draft_probs is None:
            tokens = sample(logits, batch).token_ids.view(drafted.token_ids.shape)
            same = (tokens == drafted.token_ids).double()
            return same, same
        return _by_ratio(logits, batch, drafted)

    def _lengths(self, drafted: SpeculationBatch) -> NDArray[np.int64]:
        """Tokens that count in each block: nothing follows an end token."""
        token_ids = drafted.token_ids.cpu().numpy()
        ends = np.isin(token_ids, self._target.model.config.eos_token_ids)
        gamma = token_ids.shape[1]
        lengths = np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, gamma)
        limit = gamma if drafted.lengths is None else np.array(drafted.lengths)
        return np.minimum(lengths, limit)


def _by_ratio(
    logits: Tensor, batch: SamplingBatch, drafted: SpeculationBatch
) -> tuple[Tensor, Tensor]:
    """min(1, p/q) of the drawn tokens, and its mean over draws: how far both overlap."""
    draft_probs = drafted.draft_probs
    assert draft_probs is not None, "the rejection family ships its distributions"
    target_probs = target_distributions(logits, batch).rows(slice(None))
    token_ids = drafted.token_ids.flatten()
    drawn = target_probs.gather(1, token_ids[:, None])[:, 0]
    kept = target_probs.gather(1, draft_probs.ids.clamp(max=target_probs.shape[1] - 1))
    overlap = torch.minimum(kept, draft_probs.probs).sum(dim=1)  # padding has probability 0
    shape = drafted.token_ids.shape
    return accept_probs(drawn, draft_probs.at(token_ids)).view(shape), overlap.view(shape)


def _logit(probabilities: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(probabilities) - np.log1p(-probabilities)


def _numbered(samples: Samples, first: int) -> Samples:
    """`samples` of a batch whose first text is the text `first` of all."""
    return Samples(
        samples.texts + first,
        samples.logits,
        samples.features,
        samples.stands,
        samples.expected,
        samples.lengths,
    )


def _joined(parts: Sequence[Samples]) -> Samples:
    features = [part.features for part in parts if part.features is not None]
    return Samples(
        np.concatenate([part.texts for part in parts]),
        np.concatenate([part.logits for part in parts]),
        np.concatenate(features) if features else None,
        np.concatenate([part.stands for part in parts]),
        np.concatenate([part.expected for part in parts]),
        np.concatenate([part.lengths for part in parts]),
    )
