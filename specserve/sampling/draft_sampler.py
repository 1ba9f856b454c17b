"""How drafted tokens are drawn from draft logits: greedily, by once-only noise, by shared noise.

A sampler is made anew for a batch of B blocks and injected into `Drafter.draft`, which asks it for
tokens slot by slot (or all slots at once where they do not depend on each other). Rows at
temperature 0 may stand in any batch.

Knows neither drafters nor verification. The one duty of the rejection family is here: the
distribution that is shipped is the distribution that was drawn from.
"""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from specserve.noise import OnceKeys, Purpose, exponential_noise, exponential_noise_at
from specserve.sampling.draft_probs import DraftProbs


@dataclass(frozen=True)
class BlockLayout:
    """Where the tokens to draw stand, and what the columns of the logits mean."""

    positions: Tensor  # [B] int64, absolute, of each block's first drafted token
    num_slots: int  # G
    vocab_size: int  # of the target
    target_ids: Tensor | None  # [DV] target id of each column; None: columns are target ids


class NoiseSource(Protocol):
    """Where `Coupled` has its noise from: `log_noise` of every key, wherever it is kept."""

    def __call__(
        self, seeds: Tensor, sample_indices: Tensor, layout: BlockLayout, /
    ) -> tuple[Tensor, Tensor]:
        """For B blocks: noise [D, DV] float32, and which row of it a slot has: [B, G] int64."""
        ...


def log_noise(
    seeds: Tensor, sample_indices: Tensor, positions: Tensor, layout: BlockLayout
) -> Tensor:
    """log E with which the target samples at N positions: int64 [N] to float32 [N, DV]."""
    keys = (seeds, sample_indices, positions, Purpose.OUTPUT)
    if layout.target_ids is None:
        return exponential_noise(*keys, layout.vocab_size).log_()
    return exponential_noise_at(*keys, layout.target_ids.expand(len(seeds), -1)).log_()


def fresh_log_noise(
    seeds: Tensor, sample_indices: Tensor, layout: BlockLayout
) -> tuple[Tensor, Tensor]:
    """The plain `NoiseSource`: made anew for every position of every block."""
    num_slots, device = layout.num_slots, seeds.device
    positions = layout.positions[:, None] + torch.arange(num_slots, device=device)
    each = seeds.repeat_interleave(num_slots), sample_indices.repeat_interleave(num_slots)
    rows = torch.arange(positions.numel(), device=device).view(positions.shape)
    return log_noise(*each, positions.flatten(), layout), rows


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of [..., DV] and where they are, [..., count], in no promised order."""
    return logits.topk(count, dim=-1, sorted=False)


class DraftSampling(Protocol):
    """The draws of one batch of blocks."""

    def draw(self, first_slot: int, logits: Tensor) -> Tensor:
        """Tokens [B, S] int64 (target ids) from logits [B, S, DV] float32, slots in order.

        The logits become those that the tokens are drawn from.
        """
        ...

    def draft_probs(self) -> DraftProbs | None:
        """After the last slot: [B * G] of them, block by block; None if the sampler needs none."""
        ...


@runtime_checkable
class TensorSampling(DraftSampling, Protocol):
    """One that only tensors tell from others of its drafter and kind, for who captures it."""

    @property
    def kind(self) -> tuple[object, ...]: ...

    def tensors(self) -> dict[str, Tensor]:
        """By name; the first dimension counts blocks."""
        ...

    def over(self, tensors: dict[str, Tensor]) -> "TensorSampling":
        """The same with these instead, before its first slot."""
        ...


class DraftSampler(Protocol):
    def begin(self, layout: BlockLayout) -> DraftSampling: ...


class Greedy:
    """The likeliest token, the lowest id among equals; no distribution."""

    def begin(self, layout: BlockLayout) -> "Greedy._Draws":
        return Greedy._Draws(layout.target_ids)

    @dataclass(frozen=True)
    class _Draws:
        target_ids: Tensor | None

        def draw(self, first_slot: int, logits: Tensor) -> Tensor:
            return _as_target_ids(logits.argmax(dim=-1), self.target_ids)

        def draft_probs(self) -> DraftProbs | None:
            return None

        @property
        def kind(self) -> tuple[object, ...]:
            return (type(self),)

        def tensors(self) -> dict[str, Tensor]:
            return {}

        def over(self, tensors: dict[str, Tensor]) -> "Greedy._Draws":
            return self


@dataclass(frozen=True)
class Coupled:
    """The token that the target would draw, had it the draft's distribution: by the same noise.

    All [B]: temperatures float32, seeds and sample indices int64 as in `specserve.noise`.
    `source` may remember the noise of batches before.
    """

    temperatures: Tensor
    seeds: Tensor
    sample_indices: Tensor
    source: NoiseSource = fresh_log_noise

    def begin(self, layout: BlockLayout) -> "Coupled._Draws":
        random = self.temperatures > 0
        scales = torch.where(random, 1 / self.temperatures, 1.0)
        # arg min E / w is arg max of the scaled logit - log E; noise of greedy rows is muted.
        signs = -random.to(torch.float32)
        noise, places = self.source(self.seeds, self.sample_indices, layout)
        return Coupled._Draws(
            scales[:, None, None], signs[:, None, None], noise, places, layout.target_ids
        )

    @dataclass(frozen=True)
    class _Draws:
        scales: Tensor  # [B, 1, 1]
        signs: Tensor  # [B, 1, 1] -1, or 0 at temperature 0
        noise: Tensor  # [D, DV]
        places: Tensor  # [B, G]
        target_ids: Tensor | None

        def draw(self, first_slot: int, logits: Tensor) -> Tensor:
            places = self.places[:, first_slot : first_slot + logits.shape[1]]
            # Slot by slot, so that it stays in cache.
            noise = self.noise.index_select(0, places.flatten()).view(logits.shape)
            perturbed = noise.mul_(self.signs).addcmul_(logits, self.scales)
            winners = perturbed.argmax(dim=-1)
            return _as_target_ids(winners, self.target_ids)

        def draft_probs(self) -> DraftProbs | None:
            return None

        @property
        def kind(self) -> tuple[object, ...]:
            return (type(self),)

        def tensors(self) -> dict[str, Tensor]:
            # Of a table of noise only what these blocks ask for.
            noise = self.noise.index_select(0, self.places.flatten())
            noise = noise.view(*self.places.shape, -1)
            return {"scales": self.scales, "signs": self.signs, "noise": noise}

        def over(self, tensors: dict[str, Tensor]) -> "Coupled._Draws":
            noise = tensors["noise"]
            places = torch.arange(noise.shape[0] * noise.shape[1], device=noise.device)
            noise, places = noise.flatten(0, 1), places.view(noise.shape[:2])
            return replace(self, **tensors | {"noise": noise, "places": places})


@dataclass(frozen=True)
class SaguaroFactors:
    """Saguaro sampling (SSD, Definition 14): draft less often what is prepared as an outcome.

    The F likeliest tokens of a slot weigh C times what the drafter says. More of the residual
    distribution then lies on them, so that the token after a rejection is one of them more often,
    and a block waits behind it. What is shipped is still what was drawn from.
    """

    factors: Tensor  # [B] float32, C of each block, 0 to 1; 1 leaves a distribution as it is
    num_prepared: int  # F

    def applied(self, weights: Tensor, kept: Tensor) -> Tensor:
        """`weights` [B, S, m] of tokens with logits `kept` [B, S, m], F likeliest ones cut to C.

        Where no more than F tokens are possible nothing would be left, so nothing is cut.
        """
        count = min(self.num_prepared, weights.shape[-1] - 1)
        if not count:
            return weights
        prepared = kept.topk(count, dim=-1, sorted=False).indices
        is_cut = (weights > 0).sum(dim=-1, keepdim=True) > count
        factors = torch.where(is_cut, self.factors[:, None, None], 1.0).expand(prepared.shape)
        return weights.scatter(-1, prepared, weights.gather(-1, prepared) * factors)


@dataclass(frozen=True)
class Sampled:
    """The rejection family: draws from the truncated distribution, by noise used once, and keeps
    the distribution.

    `temperatures` [B] float32; `keys` [B], whose positions are overwritten by those of the slots;
    `num_kept` is the m of the top-m truncation.
    """

    temperatures: Tensor
    keys: OnceKeys
    num_kept: int
    saguaro: SaguaroFactors | None = None

    def begin(self, layout: BlockLayout) -> "Sampled._Draws":
        # At temperature 0 any difference of logits becomes infinite: the distribution is one-hot.
        scales = torch.where(self.temperatures > 0, 1 / self.temperatures, torch.inf)
        num_columns = layout.vocab_size if layout.target_ids is None else len(layout.target_ids)
        num_kept = min(self.num_kept, num_columns)
        # Noise by place in the distribution instead of by token: nobody else has to know it, and
        # that of all slots is made at once.
        noise = self._keys(layout).exponential(Purpose.DRAFT, num_kept)
        noise = noise.view(-1, layout.num_slots, num_kept)
        return Sampled._Draws(scales[:, None, None], noise, layout.target_ids, [], self.saguaro)

    def _keys(self, layout: BlockLayout) -> OnceKeys:
        """Of every block and slot, [B * G]."""
        keys, num_slots = self.keys, layout.num_slots
        slots = torch.arange(num_slots, device=layout.positions.device)
        return OnceKeys(
            keys.nonces.repeat_interleave(num_slots),
            (layout.positions[:, None] + slots).flatten(),
            keys.sample_words.repeat_interleave(num_slots),
            keys.branch_words.repeat_interleave(num_slots),
        )

    @dataclass(frozen=True)
    class _Draws:
        scales: Tensor  # [B, 1, 1]
        noise: Tensor  # [B, G, m]
        target_ids: Tensor | None
        drawn_from: list[DraftProbs]  # each [B * S], in order of slots
        saguaro: SaguaroFactors | None = None

        def draw(self, first_slot: int, logits: Tensor) -> Tensor:
            num_blocks, num_slots, _ = logits.shape
            kept, ids = likeliest(logits, self.noise.shape[2])
            gaps = kept - kept.amax(dim=-1, keepdim=True)
            # 0 times infinity is undefined, but the likeliest token weighs 1 at any temperature.
            weights = torch.where(gaps < 0, gaps * self.scales, 0.0).exp_()
            if self.saguaro is not None:
                weights = self.saguaro.applied(weights, kept)
            ids = _as_target_ids(ids, self.target_ids)
            draft_probs = DraftProbs.of_entries(ids.flatten(0, 1), weights.flatten(0, 1))
            self.drawn_from.append(draft_probs)
            noise = self.noise[:, first_slot : first_slot + num_slots].flatten(0, 1)
            winners = (noise / draft_probs.probs).argmin(dim=1, keepdim=True)
            return draft_probs.ids.gather(1, winners).view(num_blocks, num_slots)

        def draft_probs(self) -> DraftProbs | None:
            shape = (len(self.noise), -1, self.noise.shape[2])
            ids = torch.cat([each.ids.view(shape) for each in self.drawn_from], dim=1)
            probs = torch.cat([each.probs.view(shape) for each in self.drawn_from], dim=1)
            return DraftProbs(ids.flatten(0, 1), probs.flatten(0, 1))

        @property
        def kind(self) -> tuple[object, ...]:
            own = () if self.saguaro is None else (self.saguaro.num_prepared,)
            return (type(self), *own)

        def tensors(self) -> dict[str, Tensor]:
            found = {"scales": self.scales, "noise": self.noise}
            # What is cut off: rows of zeros, which fill a graph up, are then left as they are.
            return found if self.saguaro is None else found | {"cuts": 1 - self.saguaro.factors}

        def over(self, tensors: dict[str, Tensor]) -> "Sampled._Draws":
            scales, noise = tensors["scales"], tensors["noise"]
            saguaro = self.saguaro and replace(self.saguaro, factors=1 - tensors["cuts"])
            return replace(self, scales=scales, noise=noise, drawn_from=[], saguaro=saguaro)


def _as_target_ids(ids: Tensor, target_ids: Tensor | None) -> Tensor:
    return ids if target_ids is None else target_ids[ids]
