"""Bugs for a target and its drafts: each breaks one of the rules that keep the ratio test exact.

A plant takes a `pytest.MonkeyPatch`. What it breaks still runs, and looks as it should.
"""

from dataclasses import replace

import numpy as np

from draft_node import candidates as candidates_module
from draft_node import plan as plan_module
from draft_node import waves as waves_module
from draft_node.plan import Planner
from draft_node.presolve import Presolve
from draft_node.saguaro import Saguaro
from specserve.decoding.draft_law import DraftLaw
from specserve.noise import OnceKeys, Purpose, exponential_noise_at
from target_node import asynchronous as asynchronous_module


def share_out_by_noise(patch):
    """Most is prepared where the race of shared noise is decided most clearly."""
    margins: list[float] = []
    real_rank, real_rank_all = candidates_module.rank_candidates, candidates_module.rank_all
    real_plan = Planner.plan
    real_weights = plan_module.outcome_weights

    def rank_candidates(slots, noise, excluded_ids, num_candidates):
        keys = (noise.seeds, noise.sample_indices, noise.positions)
        race = exponential_noise_at(*keys, Purpose.OUTPUT, slots.ids).log()
        look_at(slots.scores - race)
        return real_rank(slots, noise, excluded_ids, num_candidates)

    def rank_all(scores, target_ids, race, *others):
        noise, rows = race
        look_at(scores - noise[rows])
        return real_rank_all(scores, target_ids, race, *others)

    def look_at(ranked):
        best = ranked.topk(2, dim=1).values
        margins.extend((best[:, 0] - best[:, 1]).tolist())

    def plan(self, kind, flight, candidates):
        now, margins[: flight.num_slots] = margins[: flight.num_slots], []
        weigh = lambda *args: real_weights(*args) * np.exp(4 * np.array(now))  # noqa: E731
        patch.setattr(plan_module, "outcome_weights", weigh)
        return real_plan(self, kind, flight, candidates)

    patch.setattr(candidates_module, "rank_candidates", rank_candidates)
    patch.setattr(candidates_module, "rank_all", rank_all)
    patch.setattr(Planner, "plan", plan)


class _KeysOfPositions:
    """In place of `OnceKeys`: a draft is drawn by the noise of its position, round after round."""

    @staticmethod
    def build(nonces, sample_indices, rounds, branches, positions, device) -> OnceKeys:
        nothing = [0] * len(rounds)
        return OnceKeys.build(nonces, sample_indices, nothing, nothing, positions, device)


def draw_by_position_only(patch):
    patch.setattr(waves_module, "OnceKeys", _KeysOfPositions)


def hold_back_by_content(patch):
    """Blocks come too late unless they begin with some tokens."""
    real = Presolve._send

    def _send(self, wave):
        kept = [block for block in wave.blocks if block.token_ids[0] % 3]
        if kept:
            real(self, replace(wave, blocks=kept))

    patch.setattr(Presolve, "_send", _send)


def judge_by_a_flatter_law(patch):
    """As if the blocks had been drawn at another temperature."""
    real = asynchronous_module._law_of

    def _law_of(block, length, device):
        law = real(block, length, device)
        return DraftLaw.of_entries(law.ids, law.probs.sqrt())

    patch.setattr(asynchronous_module, "_law_of", _law_of)


def judge_by_the_law_of_the_next_token(patch):
    real = asynchronous_module._law_of

    def _law_of(block, length, device):
        # The block has one token more than is ever verified.
        law = real(block, length + 1, device)
        return DraftLaw(law.ids[1:], law.probs[1:])

    patch.setattr(asynchronous_module, "_law_of", _law_of)


def judge_by_the_law_before_saguaro(patch):
    """The law that is shipped is the drafter's own, not the one that was drawn from."""
    real = Saguaro._Draws.draw

    def draw(self, first_slot, logits):
        tokens = real(self, first_slot, logits)
        self.inner.laws.pop()
        real(replace(self, shifts=self.shifts * 0), first_slot, logits)
        return tokens

    patch.setattr(Saguaro._Draws, "draw", draw)
