"""Target logits to tokens: the definition of sampling in this service.

A row becomes weights, w = exp((logit - row maximum) / temperature) after the edits, zero where
truncated; the target's law is w over its sum. A token is drawn by the exponential race: the one
with the smallest E / w, E the row's counter-based noise. That has the law of w and equals
arg max of log w + Gumbel noise, so whoever knows the noise and guesses w well guesses the token.

Every step is elementwise or an exact reduction along one row (maximum, arg min, integer sum), and
a stage runs on the rows that ask for it and on no other. So a row's result does not depend, to the
last bit, on the batch it is in. This module knows no requests and no speculation.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specserve.decoding.batch import SamplingBatch
from specserve.decoding.logit_edits import apply_edits
from specserve.decoding.truncation import fixed_point_mass, mass_bits, truncate
from specserve.noise import Purpose, exponential_noise

NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token a row; `token_ids` int64 [R] holds `NO_TOKEN` where `bad_rows`, bool [R], is set.

    A bad row has a NaN, plus infinity or no possible token at all in its logits.
    """

    token_ids: Tensor
    bad_rows: Tensor


def sample(logits: Tensor, batch: SamplingBatch) -> Sampled:
    """Draw the token of every row of `logits`, float32 [R, V], which is left as it is."""
    if batch.random_rows is None and batch.edits is None:
        return _likeliest(logits)
    edited, bad_rows = _edited(logits, batch)
    if batch.random_rows is None:
        token_ids = edited.argmax(dim=1)
    else:
        token_ids = _race(edited, batch)
        if batch.greedy_rows is not None:
            drawn = token_ids
            token_ids = torch.empty_like(bad_rows, dtype=torch.int64)
            token_ids[batch.random_rows] = drawn
            token_ids[batch.greedy_rows] = edited[batch.greedy_rows].argmax(dim=1)
    return Sampled(token_ids.masked_fill_(bad_rows, NO_TOKEN), bad_rows)


def _likeliest(logits: Tensor) -> Sampled:
    """The greedy tokens of unedited rows, which one exact reduction finds."""
    if logits.device.type == "cpu":  # what numpy dispatches is little beside torch
        array = logits.numpy()
        token_ids = array.argmax(axis=1)  # of the first NaN if any is, the first of equals
        bad_rows = ~np.isfinite(array[np.arange(len(array)), token_ids])
        token_ids[bad_rows] = NO_TOKEN
        return Sampled(torch.from_numpy(token_ids), torch.from_numpy(bad_rows))
    largest, token_ids = logits.max(dim=1)  # NaN if any is; the first of equals
    bad_rows = ~largest.isfinite()
    return Sampled(token_ids.masked_fill_(bad_rows, NO_TOKEN), bad_rows)


@dataclass(frozen=True, slots=True)
class TargetLaws:
    """The laws that `sample` draws from, divided out only where somebody looks."""

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


def target_laws(logits: Tensor, batch: SamplingBatch) -> TargetLaws:
    """Of every row of `logits`, [R, V] float32 or float64.

    Greedy rows are one-hot at the lowest id among the largest logits.
    """
    edited, bad_rows = _edited(logits, batch)
    if batch.greedy_rows is None:
        weights = _weights(edited, batch)
    else:
        weights = torch.zeros_like(edited)
        weights[batch.greedy_rows, edited[batch.greedy_rows].argmax(dim=1)] = 1.0
        if batch.random_rows is not None:
            weights[batch.random_rows] = _weights(edited, batch)
    # Summed in integers: a float sum would depend on how the backend splits the reduction.
    mass = fixed_point_mass(weights, weights.shape[1]).sum(dim=1)
    return TargetLaws(weights, mass.double() * 2.0 ** -mass_bits(weights.shape[1]), bad_rows)


def target_probs(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """`target_laws` as probabilities, [R, V] in the dtype of `logits`; bad rows are all NaN."""
    return target_laws(logits, batch).rows(slice(None))


def _edited(logits: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor]:
    """Logits after penalties, bias and suppression, and which rows cannot be sampled from."""
    bad_rows = ~logits.amax(dim=1).isfinite()  # the maximum is NaN if any entry is
    if batch.edits is None:
        return logits, bad_rows
    edited = apply_edits(logits, batch.edits)
    return edited, bad_rows | ~edited.amax(dim=1).isfinite()


def _weights(edited: Tensor, batch: SamplingBatch) -> Tensor:
    """Unnormalised laws of the random rows, [R_random, V], the likeliest token at 1."""
    rows = edited if batch.greedy_rows is None else edited[batch.random_rows]
    scaled = rows - rows.amax(dim=1, keepdim=True)
    scaled /= batch.temperatures.to(scaled.dtype).unsqueeze(1)
    if batch.truncation is None:
        return scaled.exp_()
    weights = scaled.exp()
    places = batch.truncation.places
    if len(places) == len(weights):
        return truncate(scaled, weights, batch.truncation)
    weights[places] = truncate(scaled[places], weights[places], batch.truncation)
    return weights


def _race(edited: Tensor, batch: SamplingBatch) -> Tensor:
    """The winners of the random rows, int64 [R_random]; a zero weight never wins."""
    weights = _weights(edited, batch)
    noise = exponential_noise(
        batch.seeds, batch.sample_indices, batch.positions, Purpose.OUTPUT, weights.shape[1]
    )
    # Noise is finite and above zero, so noise / 0 is infinity and loses to the likeliest token.
    return noise.div_(weights).argmin(dim=1)
