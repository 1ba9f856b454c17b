"""Bugs for the loop: each breaks one thing around verification, as a service might get it wrong.

A plant takes a `pytest.MonkeyPatch`, or wraps the drafter. What it breaks still runs: the loop
ends, and answers look as they should.
"""

from dataclasses import replace

import torch

from specserve.decoding import drawing, law_kernels
from specserve.decoding.draft_law import DraftLaw
from specserve.decoding.state import SamplingState
from specserve.decoding.verification import compiled_ratio
from specserve.decoding.verification import verify as verify_module
from specserve.drafting import Drafter, SpeculationBatch
from target_node import sampler as sampler_module
from target_node.batch import ForwardBatch
from target_node.drafting import ColocatedDraft
from target_node.scheduler import Scheduler

# --- which row is which ----------------------------------------------------------------------


def shift_the_verified_rows(patch):
    """Every logits row judges its neighbour's token."""
    real = sampler_module.verify
    shifted = lambda logits, batch, laws: real(logits.roll(1, 0), batch, laws)  # noqa: E731
    patch.setattr(sampler_module, "verify", shifted)
    judge = compiled_ratio.judge_rows
    shifted_rows = lambda logits, rows, laws: judge(logits.roll(1, 0), rows, laws)  # noqa: E731
    patch.setattr(compiled_ratio, "judge_rows", shifted_rows)


def swap_the_laws(patch):
    """Every row gets the laws of another row's block."""
    real = ColocatedDraft.laws

    def laws(self, places):
        blocks = [place for place, _ in places]
        moved = blocks[1:] + blocks[:1]
        lengths = (length for _, length in places)
        return real(self, list(zip(moved, lengths, strict=True)))

    patch.setattr(ColocatedDraft, "laws", laws)


def by_torch(patch):
    """What the plant changes is not what runs on a CPU."""
    patch.setattr(verify_module, "by_compiled_ratio", lambda *_: None)
    patch.setattr(compiled_ratio, "judge_rows", lambda *_: None)


def take_the_bonus_from_the_row_before(patch):
    by_torch(patch)
    real = verify_module.walk_ends

    def walk_ends(num_accepted, group):
        full = (num_accepted == group.verify_lens) & (group.verify_lens > 0)
        return real(num_accepted, group) - full.long()

    patch.setattr(verify_module, "walk_ends", walk_ends)


# --- what is kept of a round -----------------------------------------------------------------


def commit_one_more(patch):
    """The token that was rejected stays, and the recovery token follows it."""
    real = sampler_module.commit_of

    def commit_of(drafted, num_accepted, next_token, **limits):
        return real(drafted, min(num_accepted + 1, len(drafted)), next_token, **limits)

    patch.setattr(sampler_module, "commit_of", commit_of)


def keep_the_laws_of_the_round_before(patch):
    real = ColocatedDraft.speculate

    def speculate(self, rows, **options):
        before = self._drawn
        found = real(self, rows, **options)
        if before is not None and self._drawn is not None:
            # Rows that did not exist then have their own laws.
            new, old = self._drawn.law, before.law
            count = min(len(new.ids), len(old.ids))
            merged = DraftLaw.joined([old.rows(torch.arange(count)), _from(new, count)])
            self._drawn = replace(self._drawn, law=merged)
        return found

    patch.setattr(ColocatedDraft, "speculate", speculate)


def _from(law: DraftLaw, start: int) -> DraftLaw:
    return law.rows(torch.arange(start, len(law.ids)))


def keep_the_rejected_kv(patch):
    """The token after a rejection is computed as the one that was rejected."""
    rejected = {}
    real_commit, real_of = Scheduler.commit, ForwardBatch.of

    def commit(self, row, num_accepted=0):
        real_commit(self, row, num_accepted)
        rejected.pop(row.sequence, None)
        if num_accepted < row.verify_len:
            rejected[row.sequence] = row.drafted[num_accepted]

    def of(rows, fresh_blocks):
        batch, start = real_of(rows, fresh_blocks), 0
        for row in rows:
            if row.sequence in rejected:
                batch.token_ids[start] = rejected[row.sequence]
            start += row.num_tokens
        return batch

    patch.setattr(Scheduler, "commit", commit)
    patch.setattr(ForwardBatch, "of", staticmethod(of))


def forget_the_drafted_path(patch):
    """Penalties of a drafted token's successors do not count it."""

    def along(self, drafted_token_ids):
        states = [self]
        for _ in drafted_token_ids:
            state = states[-1].fork()
            state.position += 1
            state.num_generated += 1
            states.append(state)
        return states

    patch.setattr(SamplingState, "along", along)


# --- what is drawn, and what is shipped ------------------------------------------------------


def draft_greedily(patch):
    """The likeliest token, shipped with the law it was not drawn from."""
    real = drawing.Sampled._Draws.draw

    def draw(self, first_slot, logits):
        real(self, first_slot, logits)
        return drawing._as_target_ids(logits.argmax(dim=-1), self.target_ids)

    patch.setattr(drawing.Sampled._Draws, "draw", draw)
    patch.setattr(drawing.Sampled._Draws, "race", lambda self: None)  # nobody draws by himself


def ship_a_flatter_law(patch):
    """As if the draft had another temperature than it says."""
    real = ColocatedDraft.laws

    def laws(self, places):
        law = real(self, places)
        return None if law is None else DraftLaw.of_entries(law.ids, law.probs.sqrt())

    patch.setattr(ColocatedDraft, "laws", laws)


def accept_too_much(patch):
    """The compiled test compares with half of each variate."""
    real = law_kernels.judge_by_ratio

    def judge(logits, rows, found):
        real(logits, rows._replace(uniforms=rows.uniforms / 2), found)

    patch.setattr(law_kernels, "judge_by_ratio", judge)


def forget_the_residual(patch):
    """After a rejection the next token is drawn from the target's whole law."""
    by_torch(patch)
    patch.setattr(verify_module, "residual_probs", lambda probs, law: probs)


# --- noise -----------------------------------------------------------------------------------


def share_nonces(patch):
    """Several requests have the nonce of one."""
    _change_states(patch, seed=lambda seed: seed % 8)


def share_sample_indices(patch):
    """The samples of a request have the noise of its first."""
    _change_states(patch, sample_index=lambda index: 0)


def _change_states(patch, **changes):
    def state(params, **fields):
        changed = {name: change(fields[name]) for name, change in changes.items()}
        return SamplingState(params, **{**fields, **changed})

    patch.setattr(sampler_module, "SamplingState", state)


# --- what decides how many are verified ------------------------------------------------------


def drop_drafts_by_content(patch):
    """Blocks come too late unless they begin with every third token."""
    real = Scheduler.with_drafts

    def with_drafts(self, row, speculation, verify_len):
        return real(self, row, speculation, 0 if speculation.token_ids[0] % 3 else verify_len)

    patch.setattr(Scheduler, "with_drafts", with_drafts)


class ConfidentBeforeTheDraw:
    """A drafter whose confidence is the maximum of its law: sound."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    def __getattr__(self, name):
        return getattr(self._drafter, name)

    def draft(self, batch, rule) -> SpeculationBatch:
        drawn = self._drafter.draft(batch, rule)
        if drawn.law is None:
            return drawn
        flat = self.confidences(drawn.law, drawn.token_ids.flatten())
        return replace(drawn, confidences=flat.view(drawn.token_ids.shape))

    def confidences(self, law: DraftLaw, token_ids: torch.Tensor) -> torch.Tensor:
        return law.probs.amax(dim=1)


class ConfidentAfterTheDraw(ConfidentBeforeTheDraw):
    """The probability of the token that was drawn: whether it is verified depends on it."""

    def confidences(self, law, token_ids):
        return law.at(token_ids)
