"""Steps of chains, all of them one compiled call: see `step_kernels`."""

import ctypes

import numpy as np
import torch
from torch import Tensor

from specserve.backends.cpu import step_kernels
from specserve.backends.cpu.step_kernels import ChainJob, Confidence, Drawn, Ending, Head
from specserve.drafters.chain_ending import ChainEnding
from specserve.drafters.chain_steps import Chains
from specserve.drafters.law_confidence import FittedLawConfidence
from specserve.drafters.protocol import SpeculationBatch
from specserve.models import compiled_weights
from specserve.models.linear import CompiledLinear
from specserve.sampling.draft_law import DraftLaw
from specserve.sampling.race import SAMPLED, Race

_CLOCK_GETTIME = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value or 0


class CompiledSteps:
    """`ChainSteps` of what is compiled throughout."""

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
        self._num_kept = 0  # steps that the drawing has heard of

    def run(self, ending: ChainEnding) -> SpeculationBatch:
        """As of `ChainSteps`."""
        chains, clock, worth = self._chains, ending.clock, ending.worth
        job = ChainJob(
            np.ascontiguousarray(chains.batch.anchor_ids.numpy()),
            chains.passes.by_address(),
            self._head,
            self._confidence,
            self._race,
            self._drawn,
            Ending(clock.state, worth.state, worth.survivals, worth.chances),
        )
        rest = job, (self._num_tokens, chains.most), _CLOCK_GETTIME
        made, count, goes_on = step_kernels.draft_chains(0, *rest)
        while made == step_kernels.NO_LAW:
            self._draw_by_torch(count - 1)
            if not goes_on or count == chains.most:
                break
            made, count, goes_on = step_kernels.draft_chains(count, *rest)
        if made == step_kernels.BROKE_OFF:
            raise RuntimeError("the compiled forward broke off")
        if made == step_kernels.NO_TOKEN:
            raise IndexError("chains begin with tokens, or behind ones, that are not there")
        self._keep_laws(count)
        return self._speculations(count)

    def _keep_laws(self, num_steps: int) -> None:
        """Of the steps so far that nobody has kept one of yet."""
        drawn, drawing = self._drawn, self._chains.drawing
        if drawn.law_ids.shape[2]:
            for slot in range(self._num_kept, num_steps):
                ids, probs = drawn.law_ids[slot], drawn.law_probs[slot]
                drawing.take(DraftLaw(torch.from_numpy(ids), torch.from_numpy(probs)))
        self._num_kept = num_steps

    def _draw_by_torch(self, slot: int) -> None:
        known = np.ascontiguousarray(self._drawn.token_ids[self._num_kept : slot].T)
        self._chains.drawing.note(torch.from_numpy(known))
        self._keep_laws(slot)
        logits = self._logits()[:, min(slot, len(self._drawn.logits) - 1)]
        token_ids = self._chains.drawing.draw(slot, logits[:, None])  # which keeps the law, too
        self._drawn.token_ids[slot] = token_ids[:, 0].numpy()
        self._num_kept = slot + 1

    def _logits(self) -> Tensor:
        """[B, slots, V]"""
        return torch.from_numpy(self._drawn.logits).transpose(0, 1)[..., : self._num_tokens]

    def _speculations(self, count: int) -> SpeculationBatch:
        """Of so many steps."""
        drawn, confidences = self._drawn, None
        if len(self._confidence.biases):
            confidences = torch.from_numpy(np.ascontiguousarray(drawn.confidences[:count].T))
        return SpeculationBatch(
            torch.from_numpy(np.ascontiguousarray(drawn.token_ids[:count].T)),
            self._chains.drawing.law(),
            confidences,
            logits=self._logits()[:, :count] if self._chains.batch.keep_logits else None,
        )


def _coefficients(confidence: FittedLawConfidence | None, num_slots: int) -> Confidence:
    if confidence is None:
        nothing = np.empty(0, np.float32)
        return Confidence(np.zeros(2, np.float32), nothing, nothing)
    return Confidence(*confidence.coefficients(num_slots))
