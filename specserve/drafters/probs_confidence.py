"""Confidences for drafters without a confidence head: a logistic function of the draft
distribution.

A distribution that is sure of its token is accepted more often. How much more, and how that fades
along the block, is fitted: logit = a * log(largest probability) + b * entropy + c_k for slot k.
Both figures are those of the distribution at temperature 1, known before anything is drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]

_RIDGE = 1e-4  # a share of the samples: keeps coefficients of unused slots finite
_MAX_STEPS = 50
_MAX_CHANGE = 4.0  # of a coefficient in one step


class ConfidenceModel(msgspec.Struct, frozen=True, kw_only=True):
    """The coefficients; slots beyond `biases` take the last of them."""

    log_max_prob: float
    entropy: float  # in nats
    biases: list[float]

    def logits(self, features: Floats) -> Floats:
        """features [N, G, 2] of `confidence_features` -> confidence logits [N, G]."""
        biases = by_position(self.biases, features.shape[1])
        return features @ np.array([self.log_max_prob, self.entropy]) + biases


def sigmoid(logits: Floats) -> Floats:
    """The probability of a confidence logit, both float64 of one shape."""
    return 0.5 + 0.5 * np.tanh(0.5 * logits)  # never overflows


def by_position(values: Sequence[float] | Floats, num_positions: int) -> Floats:
    """One value for each position of a block; those beyond `values` take the last of them."""
    return np.array(values)[np.minimum(np.arange(num_positions), len(values) - 1)]


def confidence_features(logits: Tensor) -> Tensor:
    """Draft logits [B, S, V] -> log of the largest probability, and entropy: [B, S, 2] float32."""
    logs = logits.float().log_softmax(dim=-1)
    # A token that is impossible (minus infinity) adds nothing, instead of 0 times infinity.
    entropy = -(logs.exp() * logs.clamp(min=-1e4)).sum(dim=-1)
    return torch.stack([logs.amax(dim=-1), entropy], dim=-1)


class FeatureRecorder:
    """`ProbsConfidence` that answers with the largest probability and keeps what it has seen."""

    def __init__(self) -> None:
        self._seen: list[Tensor] = []

    def __call__(self, first_slot: int, logits: Tensor) -> Tensor:
        features = confidence_features(logits)
        self._seen.append(features)
        return features[..., 0].exp()

    def take(self) -> Tensor:
        """Features [B, G, 2] of the blocks drafted since the last call."""
        features = torch.cat(self._seen, dim=1)
        self._seen.clear()
        return features


@dataclass(frozen=True)
class FittedConfidence:
    """`ProbsConfidence` by a model and, if there are any, temperatures [G] of its logits."""

    weights: Tensor  # [2] float32
    biases: Tensor  # [G] float32, divided by the temperatures
    scales: Tensor  # [G] float32: 1 / temperature

    @staticmethod
    def of(
        model: ConfidenceModel, temperatures: list[float], device: torch.device
    ) -> "FittedConfidence":
        weights = torch.tensor([model.log_max_prob, model.entropy], device=device)
        scales = 1 / torch.tensor(temperatures, device=device)
        return FittedConfidence(weights, torch.tensor(model.biases, device=device) * scales, scales)

    def __call__(self, first_slot: int, logits: Tensor) -> Tensor:
        raw, num_slots = confidence_features(logits) @ self.weights, logits.shape[1]
        scales, biases = (self._of(x, first_slot, num_slots) for x in (self.scales, self.biases))
        return torch.addcmul(biases, raw, scales).sigmoid_()

    @staticmethod
    def _of(by_slot: Tensor, first: int, count: int) -> Tensor:
        """[count] of the slots from `first` on; those beyond the last are as that."""
        if first + count <= len(by_slot):
            return by_slot[first : first + count]
        slots = torch.arange(first, first + count, device=by_slot.device)
        return by_slot[slots.clamp(max=len(by_slot) - 1)]


def fit_confidence_model(features: Floats, targets: Floats, weights: Floats) -> ConfidenceModel:
    """Maximum likelihood, slightly regularised, by Newton's method.

    features [N, G, 2]; targets [N, G] are P(token k stands | those before it do), and count as much
    as `weights` [N, G] says: the probability that those before it did stand.
    """
    num_slots = features.shape[1]
    design = _design(features)
    y, w = targets.reshape(-1), weights.reshape(-1)
    coefficients = np.zeros(2 + num_slots)
    ridge = _RIDGE * max(1.0, w.sum())
    for _ in range(_MAX_STEPS):
        p = sigmoid(design @ coefficients)
        gradient = design.T @ (w * (p - y)) + ridge * coefficients
        curvature = (design * (w * p * (1 - p))[:, None]).T @ design
        step = np.linalg.solve(curvature + ridge * np.eye(len(coefficients)), gradient)
        coefficients -= np.clip(step, -_MAX_CHANGE, _MAX_CHANGE)
        if np.abs(step).max() < 1e-8:
            break
    return ConfidenceModel(
        log_max_prob=float(coefficients[0]),
        entropy=float(coefficients[1]),
        biases=[float(bias) for bias in coefficients[2:]],
    )


def _design(features: Floats) -> NDArray[np.float64]:
    """[N, G, 2] -> [N * G, 2 + G]: the features, and which slot they are of."""
    num_rows, num_slots, _ = features.shape
    slots = np.broadcast_to(np.eye(num_slots), (num_rows, num_slots, num_slots))
    return np.concatenate([features, slots], axis=2).reshape(num_rows * num_slots, -1)
