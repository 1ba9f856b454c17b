"""Steps of chains, each of them one compiled call: see `step_kernels`."""

import numpy as np
import torch
from torch import Tensor

from draft_node import step_kernels
from draft_node.calibration.law_confidence import FittedLawConfidence
from draft_node.drafters.chain_steps import Chains
from draft_node.step_kernels import Confidence, Drawn, Forward, Head
from specserve.decoding.draft_law import DraftLaw
from specserve.decoding.race import SAMPLED, Race
from specserve.drafting import SpeculationBatch
from specserve.model import compiled_weights
from specserve.model.linear import CompiledLinear


class CompiledSteps:
    """The first pass is made as ever, since tokens in flight may enter with it."""

    @staticmethod
    def of(chains: Chains) -> "CompiledSteps | None":
        """None where some part of a step is not to be had compiled."""
        head, confidence = chains.model.lm_head, chains.law_confidence
        if not isinstance(head, CompiledLinear) or not chains.passes.are_compiled:
            return None
        if confidence is not None and not isinstance(confidence, FittedLawConfidence):
            return None
        race = chains.drawing.race()
        if race is None or torch.get_num_threads() != 1:
            return None
        return CompiledSteps(chains, head, confidence, race)

    def __init__(
        self,
        chains: Chains,
        head: CompiledLinear,
        confidence: FittedLawConfidence | None,
        race: Race,
    ) -> None:
        self._chains, self._race = chains, race
        self._num_tokens = chains.model.config.vocab_size
        self._head = Head(*compiled_weights.alone(head))
        num_chains, most = len(chains.batch.rows), chains.most
        self._confidence = _coefficients(confidence, most)
        num_kept = race.noise.shape[1] if race.kind == SAMPLED else 0
        num_columns = head.weight.shape[0] * head.kernels.panel
        num_logits = most if chains.batch.keep_logits else 1
        self._drawn = Drawn(
            np.empty((most, num_chains), np.int64),
            np.empty((most, num_chains), np.float32),
            np.empty((num_logits, num_chains, num_columns), np.float32),
            np.empty((most, num_chains, num_kept), np.int64),
            np.empty((most, num_chains, num_kept), np.float32),
        )
        self._num_steps = 0
        self._forward: Forward | None = None

    def step(self) -> None:
        slot, rest = self._num_steps, (self._head, self._confidence, self._race, self._drawn)
        if slot == 0:
            hidden = self._chains.passes.run(self._chains.batch.anchor_ids).numpy()
            made = step_kernels.first_step(hidden, *rest, self._num_tokens)
        else:
            if self._forward is None:
                self._forward = self._chains.passes.repeated()
            made = step_kernels.further_step(slot, self._forward, *rest, self._num_tokens)
        if made == step_kernels.BROKE_OFF:
            raise RuntimeError("the compiled forward broke off")
        self._keep_law(slot, is_made=made == step_kernels.MADE)
        self._num_steps += 1

    def _keep_law(self, slot: int, *, is_made: bool) -> None:
        drawn, drawing = self._drawn, self._chains.drawing
        if not is_made:
            logits = self._logits()[:, min(slot, len(drawn.logits) - 1)]
            drawn.token_ids[slot] = drawing.draw(slot, logits[:, None])[:, 0].numpy()
        elif drawn.law_ids.shape[2]:
            ids, probs = drawn.law_ids[slot], drawn.law_probs[slot]
            drawing.take(DraftLaw(torch.from_numpy(ids), torch.from_numpy(probs)))

    def _logits(self) -> Tensor:
        """[B, slots, V]"""
        return torch.from_numpy(self._drawn.logits).transpose(0, 1)[..., : self._num_tokens]

    def last_confidences(self) -> list[float]:
        return self._drawn.confidences[self._num_steps - 1].tolist()

    def drawn(self) -> SpeculationBatch:
        count, drawn = self._num_steps, self._drawn
        confidences = None
        if len(self._confidence.biases):
            confidences = torch.from_numpy(np.ascontiguousarray(drawn.confidences[:count].T))
        return SpeculationBatch(
            torch.from_numpy(np.ascontiguousarray(drawn.token_ids[:count].T)),
            self._chains.drawing.law(),
            confidences,
            logits=self._logits()[:, :count] if self._chains.batch.keep_logits else None,
        )


def _coefficients(confidence: FittedLawConfidence | None, num_slots: int) -> Confidence:
    """Slots beyond the last of them are as that."""
    if confidence is None:
        nothing = np.empty(0, np.float32)
        return Confidence(np.zeros(2, np.float32), nothing, nothing)
    by_slot = [
        np.resize(np.append(x, np.repeat(x[-1:], num_slots)), num_slots)
        for x in (confidence.biases.numpy(), confidence.scales.numpy())
    ]
    return Confidence(confidence.weights.numpy(), *by_slot)
