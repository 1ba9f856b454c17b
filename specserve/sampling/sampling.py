"""Target logits to tokens: the definition of sampling in this service.

A row becomes weights, w = exp((logit - row maximum) / temperature) after the edits, zero where
truncated; the target's law is w over its sum. A token is drawn by the exponential race: the one
with the smallest E / w, E the row's counter-based noise. That has the law of w and equals
arg max of log w + Gumbel noise, so whoever knows the noise and guesses w well guesses the token.

Every step is elementwise or an exact reduction along one row (maximum, arg min, integer sum), and
a stage runs on the rows that ask for it and on no other. So a row's result does not depend, to the
last bit, on the batch it is in. This module knows no requests and no speculation.
"""

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specserve import noise
from specserve.backends.cpu import noise_kernel
from specserve.backends.cuda import cuda_graphs
from specserve.backends.cuda.cuda_graphs import RecordedRows
from specserve.noise import Purpose, exponential_noise
from specserve.sampling import truncation_kernels
from specserve.sampling.batch import SamplingBatch, Truncation
from specserve.sampling.logit_edits import apply_edits
from specserve.sampling.truncation import fixed_point_mass, mass_bits, padded_top_k, truncate

NO_TOKEN = noise_kernel.NOBODY
MOST_RECORDED = 1 << 22  # logits, whose kernels take no longer than beginning them does


def prepare(device: torch.device) -> None:
    """Compile now what would otherwise be compiled in the middle of a round, if it is needed."""
    noise.prepare(device)
    if device.type == "cpu":
        truncation_kernels.are_usable()


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
    if batch.edits is None:
        if batch.random_rows is None:
            return Sampled(_likeliest(logits))
        if batch.greedy_rows is None:
            winners = _unedited_race(logits, batch)
            if winners is not None:
                return Sampled(winners)
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
    return Sampled(token_ids.masked_fill_(bad_rows, NO_TOKEN))


def _is_compiled(logits: Tensor) -> bool:
    on_host = logits.device.type == "cpu" and logits.dtype == torch.float32
    return on_host and noise_kernel.is_usable()


def _likeliest(logits: Tensor) -> Tensor:
    """The greedy tokens of unedited rows, which one exact reduction finds: the first of equals."""
    if _is_compiled(logits):
        winners = np.empty(len(logits), np.int64)
        noise_kernel.likeliest(logits.contiguous().numpy(), winners)
        return torch.from_numpy(winners)
    largest, token_ids = logits.max(dim=1)  # NaN if any is
    return token_ids.masked_fill_(~largest.isfinite(), NO_TOKEN)


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
    bad_rows = _are_bad(logits)
    if batch.edits is None:
        return logits, bad_rows
    edited = apply_edits(logits, batch.edits)
    return edited, bad_rows | _are_bad(edited)


def _are_bad(logits: Tensor) -> Tensor:
    """Bool [R]: a row's maximum is NaN if any entry is."""
    if logits.device.type == "cpu":  # what numpy dispatches is little beside torch
        return torch.from_numpy(~np.isfinite(logits.numpy().max(axis=1)))
    return ~logits.amax(dim=1).isfinite()


def _weights(edited: Tensor, batch: SamplingBatch) -> Tensor:
    """Unnormalised laws of the random rows, [R_random, V], the likeliest token at 1."""
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


def _race(edited: Tensor, batch: SamplingBatch) -> Tensor:
    """The winners of the random rows, int64 [R_random]; a zero weight never wins.

    How a row is computed depends on that row alone, as all of its bits do.
    """
    rows = edited if batch.greedy_rows is None else edited[batch.random_rows]
    if not _is_compiled(rows):
        return _race_of(_weights(edited, batch), batch, slice(None))
    truncation = batch.truncation
    if truncation is None:
        return _compiled_race(rows, batch)
    if len(truncation.places) == len(rows):
        return _truncated_race(rows, batch, truncation)
    winners = _compiled_race(rows, batch)
    winners[truncation.places] = _truncated_race(rows[truncation.places], batch, truncation)
    return winners


def _truncated_race(rows: Tensor, batch: SamplingBatch, truncation: Truncation) -> Tensor:
    """Of `rows`, those that truncate; compiled where that is to be had."""
    places = truncation.places
    temperatures = batch.temperatures[places]
    if not truncation_kernels.are_usable():
        scaled = _scaled(rows, temperatures)
        return _race_of(truncate(scaled, scaled.exp(), truncation), batch, places)
    positions, sample_indices, seeds = batch.keys[:, places]
    purposes = torch.full_like(seeds, int(Purpose.OUTPUT))
    winners = np.empty(len(rows), np.int64)
    truncation_kernels.race_of_possible(
        rows.contiguous().numpy(),
        temperatures.numpy().astype(np.float32),
        truncation.top_k.numpy(),
        truncation.top_p.numpy(),
        truncation.min_p.numpy(),
        torch.stack((positions, sample_indices, purposes, seeds)).numpy().view(np.uint64),
        winners,
    )
    return torch.from_numpy(winners)


def _race_of(weights: Tensor, batch: SamplingBatch, places: Tensor | slice) -> Tensor:
    """Of the random rows at these places, with weights [K, V]."""
    noise = exponential_noise(
        batch.seeds[places],
        batch.sample_indices[places],
        batch.positions[places],
        Purpose.OUTPUT,
        weights.shape[1],
    )
    # Noise is finite and above zero, so noise / 0 is infinity and loses to the likeliest token.
    return noise.div_(weights).argmin(dim=1)


def _unedited_race(logits: Tensor, batch: SamplingBatch) -> Tensor | None:
    """Of a batch whose rows all draw; None: nothing is made for that."""
    if _is_compiled(logits):
        return _compiled_race(logits, batch) if batch.truncation is None else None
    if not cuda_graphs.are_used(logits.device):
        return None
    columns = logits, batch.temperatures, batch.keys.T
    if batch.truncation is None:
        return _recorded_races()(*columns)
    cuts = batch.truncation.spread(batch.num_rows)
    return _recorded_races()(
        *columns,
        cuts.top_k,
        cuts.top_p,
        cuts.min_p,
        max_top_k=padded_top_k(cuts.max_top_k),
        any_top_p=cuts.any_top_p,
    )


@functools.cache
def _recorded_races() -> RecordedRows:
    return RecordedRows(_race_by_torch, MOST_RECORDED)


def _race_by_torch(
    logits: Tensor,
    temperatures: Tensor,
    keys: Tensor,
    *cuts: Tensor,
    max_top_k: int = 0,
    any_top_p: int = False,
) -> Tensor:
    """Logits [R, V], temperatures [R], keys [R, 3]; top_k, top_p and min_p [R] or none of them."""
    truncation = None
    if cuts:
        top_k, top_p, min_p = cuts
        truncation = Truncation(
            places=temperatures,  # all rows
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            max_top_k=max_top_k,
            any_top_p=bool(any_top_p),
            may_wait=False,
        )
    batch = SamplingBatch(
        num_rows=len(logits),
        greedy_rows=None,
        random_rows=temperatures,  # all of them
        temperatures=temperatures,
        keys=keys.T,
        edits=None,
        truncation=truncation,
    )
    drawn = _race_of(_weights(logits, batch), batch, slice(None))
    return drawn.masked_fill_(_are_bad(logits), NO_TOKEN)


def _compiled_race(rows: Tensor, batch: SamplingBatch) -> Tensor:
    """Of all random rows, nothing truncated; `NO_TOKEN` in bad ones."""
    keys = batch.keys.numpy()
    temperatures = batch.temperatures.numpy().astype(np.float32)
    winners = np.empty(len(rows), np.int64)
    logits = rows.contiguous().numpy()
    noise_kernel.race(logits, temperatures, keys.view(np.uint64), int(Purpose.OUTPUT), winners)
    return torch.from_numpy(winners)
