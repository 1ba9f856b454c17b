"""The tokens that a drafter can draft, where they are fewer than the target's.

An output head of all of a small target's tokens is most of what a drafter reads and multiplies.
Cut to the tokens that the target writes most often it is a part of that, and what is given up is
bounded: a token that is never drafted is never accepted. What is verified stays as it is.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from draft_node.training.checkpoint import unusable
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.run_folder import is_begun
from specserve.drafters.weights import IN_DRAFT, OFFSETS
from specserve.errors import InvalidField

log = logging.getLogger(__name__)

_MAX_PROBS = 1 << 25  # at once, of all the target's tokens
FILE_NAME = "draft_vocabulary.npy"  # beside a run's checkpoint


class DraftVocabulary:
    """What losses ask of the tokens that are drafted: all of the target's, or `ids` [DV]."""

    def __init__(self, target: FrozenTarget, ids: Tensor | None = None) -> None:
        self.ids, self._target = ids, target
        self.head, self._columns = target.lm_head, None  # [DV, H]
        if ids is not None:
            self._on_device = ids.to(target.device)
            self.head = target.lm_head[self._on_device]
            self._columns = columns(ids, len(target.lm_head)).to(target.device)
            self._own_head = target.head_of(ids)
            self._unknown = self._on_device >= target.spec.num_known_tokens

    def target_probs(
        self, hidden: Tensor, log_sums: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The target's distributions at final hidden states [..., H].

        Of the tokens that are drafted [..., DV], and what all others have together [...] (None:
        there are no others). With `log_sums` [...], as `TargetOutputs` has them, nothing is
        computed of the others.
        """
        if self._columns is None:
            return self._target.probs(hidden), None
        if log_sums is not None:
            known = self._drafted_probs(hidden.flatten(0, -2), log_sums.flatten())
            known = known.view(*hidden.shape[:-1], -1)
            return known, (1 - known.sum(-1)).clamp(min=0)
        rows = hidden.flatten(0, -2).split(max(1, _MAX_PROBS // len(self._columns)))
        parts = [self._target.probs(part).index_select(-1, self._on_device) for part in rows]
        known = torch.cat(parts).view(*hidden.shape[:-1], -1)
        return known, (1 - known.sum(-1)).clamp(min=0)

    @torch.no_grad()
    def _drafted_probs(self, hidden: Tensor, log_sums: Tensor) -> Tensor:
        """[N, H], [N] -> [N, DV]"""
        with torch.autocast(hidden.device.type, enabled=False):
            logits = self._own_head(hidden).float()
            logits[:, self._unknown] = float("-inf")
            return logits.sub_(log_sums[:, None]).exp_()

    def labels(self, token_ids: Tensor) -> Tensor:
        """Places among the drafted tokens, -1 for others: [...] int64 both."""
        return token_ids if self._columns is None else self._columns[token_ids]


def refuse_size(size: int | None, vocab_size: int) -> None:
    """Raise InvalidField unless so many tokens, or all of them (None), can be drafted."""
    if size is not None and size > vocab_size:
        raise InvalidField("--draft-vocab", f"{size}: the target has {vocab_size} tokens")


def of_run(folder: Path, choose: Callable[[], Tensor]) -> Tensor:
    """The tokens that the run in `folder` was begun with: int64 [DV]. A new one chooses.

    Its weights are theirs, column by column, and text may have grown since. Raises Unsupported if
    they cannot be read.
    """
    path = folder / FILE_NAME
    if is_begun(folder) and path.exists():
        try:
            return torch.from_numpy(np.load(path, allow_pickle=False))
        except (OSError, EOFError, ValueError, TypeError) as error:
            raise unusable(path, f"cannot be read ({error})") from error
    ids = choose()
    temporary = path.with_suffix(f".{os.getpid()}.npy")  # every process of a run writes the same
    np.save(temporary, ids.numpy())
    os.replace(temporary, path)
    return ids


def chosen(
    training: Mapping[str, np.ndarray],
    held_out: Mapping[str, np.ndarray],
    size: int,
    vocab_size: int,
) -> Tensor:
    """`most_frequent` of what is trained on, and in the log how much they are of what is not."""
    ids = most_frequent(training.values(), size, vocab_size)
    for name, stream in held_out.items():
        share = 100 * coverage(stream, ids)
        log.info("%d tokens are drafted: %.1f %% of what is held out of %s", size, share, name)
    return ids


def most_frequent(streams: Iterable[np.ndarray], size: int, vocab_size: int) -> Tensor:
    """The `size` tokens that are learned most often, by id: int64 [size].

    Of tokens that are equally frequent, and of those that are in no stream, the first by id.
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    for stream in streams:
        learned = np.asarray(stream[stream >= 0])
        counts += np.bincount(learned, minlength=vocab_size)
    ranked = np.argsort(-counts, kind="stable")
    return torch.from_numpy(np.sort(ranked[:size]))


def coverage(stream: np.ndarray, ids: Tensor) -> float:
    """Share of a stream's learned tokens that are among `ids` [DV]."""
    learned = stream[stream >= 0]
    return float(np.isin(learned, ids.numpy()).mean())


def columns(ids: Tensor, vocab_size: int) -> Tensor:
    """The place of every target token among `ids` [DV], int64 [V]; -1 for what is not drafted."""
    places = torch.full((vocab_size,), -1, dtype=torch.int64)
    places[ids] = torch.arange(len(ids))
    return places


def tables(ids: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """As a checkpoint holds them: offsets of draft ids to target ids, and who is drafted."""
    listed = torch.zeros(vocab_size, dtype=torch.bool)
    listed[ids] = True
    return {OFFSETS: ids - torch.arange(len(ids)), IN_DRAFT: listed}


def from_tables(weights: dict[str, Tensor]) -> Tensor | None:
    """Takes the tables out of a checkpoint's tensors, which have been checked: int64 [DV]."""
    offsets, listed = weights.pop(OFFSETS, None), weights.pop(IN_DRAFT, None)
    if offsets is None or listed is None:
        return None
    offsets = offsets.long()
    return offsets + torch.arange(len(offsets))
