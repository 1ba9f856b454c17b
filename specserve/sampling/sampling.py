"""Target logits to tokens: the definition of sampling in this service.

A row becomes weights, w = exp((logit - row maximum) / temperature) after the edits, zero where
truncated; the target's distribution is w over its sum. A token is drawn by exponential sampling:
the one with the smallest E / w, E the row's counter-based noise. That has the distribution of w and
equals arg max of log w + Gumbel noise, so whoever knows the noise and guesses w well guesses the
token.

Every step is elementwise or an exact reduction along one row (maximum, arg min, integer sum), and
a stage runs on the rows that ask for it and on no other. So a row's result does not depend, to the
last bit, on the batch it is in. This module knows no requests and no speculation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from specserve.noise import Purpose, exponential_noise, exponential_noise_at
from specserve.sampling.batch import SamplingBatch, apply_edits
from specserve.sampling.truncation import (
    Likeliest,
    can_be_few,
    fixed_point_mass,
    likeliest,
    mass_bits,
    truncate,
)

NO_TOKEN = -1  # in place of a token where none can be drawn


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token a row, int64 [R]: `NO_TOKEN` in bad rows.

    A bad row has a NaN, plus infinity or no possible token at all in its logits.
    """

    token_ids: Tensor

    @property
    def bad_rows(self) -> Tensor:
        """bool [R]"""
        return self.token_ids == NO_TOKEN


def sample(logits: Tensor, batch: SamplingBatch) -> Sampled:
    """Draw the token of every row of `logits`, float32 [R, V], which is left as it is."""
    if batch.edits is None and batch.random_rows is None:
        return Sampled(_likeliest(logits))
    edited, bad_rows = _edited(logits, batch)
    if batch.random_rows is None:
        token_ids = edited.argmax(dim=1)
    else:
        token_ids = _draw(edited, batch)
        if batch.greedy_rows is not None:
            drawn = token_ids
            token_ids = torch.empty_like(bad_rows, dtype=torch.int64)
            token_ids[batch.random_rows] = drawn
            token_ids[batch.greedy_rows] = edited[batch.greedy_rows].argmax(dim=1)
    return Sampled(token_ids.masked_fill_(bad_rows, NO_TOKEN))


def _likeliest(logits: Tensor) -> Tensor:
    """The greedy tokens of unedited rows, which one exact reduction finds: the first of equals."""
    largest, token_ids = logits.max(dim=1)  # NaN if any is
    return token_ids.masked_fill_(~largest.isfinite(), NO_TOKEN)


@dataclass(frozen=True, slots=True)
class TargetDistributions:
    """The distributions that `sample` draws from, divided out only where somebody looks."""

    weights: Tensor  # [R, V] in the dtype of the logits, zero where impossible
    totals: Tensor  # float64 [R], sums of the weights
    bad_rows: Tensor  # bool [R]; their weights mean nothing

    def at(self, token_ids: Tensor) -> Tensor:
        """The probability of one token a row, int64 [R]; NaN in bad rows."""
        weights = self.weights.gather(1, token_ids.unsqueeze(1)).squeeze(1)
        probs = (weights.double() / self.totals).to(weights.dtype)
        return probs.masked_fill_(self.bad_rows, float("nan"))

    def rows(self, places: Tensor | slice) -> Tensor:
        """All probabilities of the rows at these places, int64 [K], as [K, V]; bad rows NaN."""
        weights = self.weights[places]
        probs = (weights.double() / self.totals[places].unsqueeze(1)).to(weights.dtype)
        return probs.masked_fill_(self.bad_rows[places].unsqueeze(1), float("nan"))


def target_distributions(logits: Tensor, batch: SamplingBatch) -> TargetDistributions:
    """Of every row of `logits`, [R, V] float32 or float64.

    Greedy rows are one-hot at the lowest id among the largest logits.
    """
    edited, bad_rows = _edited(logits, batch)
    num_tokens = logits.shape[1]
    if batch.greedy_rows is None:
        if _can_be_few(batch) and (few := _likeliest_tokens(edited, batch)).are_all:
            weights = torch.zeros_like(edited).scatter_(1, few.ids, few.weights)
            return TargetDistributions(weights, _totals(few.weights, num_tokens), bad_rows)
        weights = _weights(edited, batch)
    else:
        weights = torch.zeros_like(edited)
        weights[batch.greedy_rows, edited[batch.greedy_rows].argmax(dim=1)] = 1.0
        if batch.random_rows is not None:
            weights[batch.random_rows] = _weights(edited, batch)
    return TargetDistributions(weights, _totals(weights, num_tokens), bad_rows)


def _totals(weights: Tensor, num_tokens: int) -> Tensor:
    """float64 [R]. Summed in integers: a float sum would depend on how a backend splits it."""
    mass = fixed_point_mass(weights, num_tokens).sum(dim=1)
    return mass.double() * 2.0 ** -mass_bits(num_tokens)


def target_probs(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """`target_distributions` as probabilities, [R, V] in the dtype of `logits`; NaN in bad rows."""
    return target_distributions(logits, batch).rows(slice(None))


def _edited(logits: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor]:
    """Logits after penalties, bias and suppression, and which rows cannot be sampled from."""
    bad_rows = _are_bad(logits)
    if batch.edits is None:
        return logits, bad_rows
    edited = apply_edits(logits, batch.edits)
    return edited, bad_rows | _are_bad(edited)


def _are_bad(logits: Tensor) -> Tensor:
    """Bool [R]: a row's maximum is NaN if any entry is."""
    return ~logits.amax(dim=1).isfinite()


def _weights(edited: Tensor, batch: SamplingBatch) -> Tensor:
    """Unnormalised distributions of the random rows, [R_random, V], the likeliest token at 1."""
    rows = edited if batch.greedy_rows is None else edited[batch.random_rows]
    scaled = _scaled(rows, batch.temperatures)
    if batch.truncation is None:
        return scaled.exp_()
    weights = scaled.exp()
    places = batch.truncation.places
    if len(places) == len(weights):
        return truncate(scaled, weights, batch.truncation)
    weights[places] = truncate(scaled[places], weights[places], batch.truncation)
    return weights


def _scaled(rows: Tensor, temperatures: Tensor) -> Tensor:
    """(logit - row maximum) / temperature."""
    scaled = rows - rows.amax(dim=1, keepdim=True)
    scaled /= temperatures.to(scaled.dtype).unsqueeze(1)
    return scaled


def _draw(edited: Tensor, batch: SamplingBatch) -> Tensor:
    """The winners of the random rows, int64 [R_random]; a zero weight never wins."""
    if _can_be_few(batch) and (few := _likeliest_tokens(edited, batch)).are_all:
        return _draw_of_few(few, batch)
    weights = _weights(edited, batch)
    noise = exponential_noise(
        batch.seeds, batch.sample_indices, batch.positions, Purpose.OUTPUT, weights.shape[1]
    )
    # Noise is finite and above zero, so noise / 0 is infinity and loses to the likeliest token.
    return noise.div_(weights).argmin(dim=1)


def _draw_of_few(few: Likeliest, batch: SamplingBatch) -> Tensor:
    """`_draw` by the noise of the tokens that truncation leaves."""
    noise = exponential_noise_at(
        batch.seeds, batch.sample_indices, batch.positions, Purpose.OUTPUT, few.ids
    )
    winners = noise.div_(few.weights).argmin(dim=1, keepdim=True)  # the lowest id among equals
    return few.ids.gather(1, winners).squeeze(1)


def _can_be_few(batch: SamplingBatch) -> bool:
    """Whether all random rows truncate, and may leave few tokens by it."""
    cuts = batch.truncation
    return cuts is not None and len(cuts.places) == len(batch.temperatures) and can_be_few(cuts)


def _likeliest_tokens(edited: Tensor, batch: SamplingBatch) -> Likeliest:
    """The likeliest tokens of the random rows, all of which truncate."""
    assert batch.truncation is not None
    rows = edited if batch.greedy_rows is None else edited[batch.random_rows]
    scaled = _scaled(rows, batch.temperatures)
    return likeliest(scaled, scaled.exp(), batch.truncation)
