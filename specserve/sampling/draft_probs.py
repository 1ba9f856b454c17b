"""The distribution a drafted token is drawn from: the likeliest few tokens, renormalised, in
float32.

Exactness of the rejection family rests on one distribution for two uses: what the draft draws from
is what it ships, and what the target divides by. So the distribution is made once, here, truncation
and rounding included; a token outside it is neither drawn nor corrected for. Coupled and greedy
rows need none.

Knows neither the target's distribution nor how a block is laid out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

PAD_ID = 2**31 - 1  # beyond any vocabulary, and the last id when sorted
_MAX_EXCESS = 1e-4  # of a sum over 1; rounding makes 1e-6, a flipped bit nearly always more


@dataclass(frozen=True, slots=True)
class DraftProbs:
    """N distributions over at most M tokens each, in canonical form: ids ascend, padding comes
    last.

    `ids` int64 [N, M], `PAD_ID` where padded; `probs` float32 [N, M] (float64 in enumerations),
    above zero except in padding. A row of nothing but padding is the empty distribution: no draft.
    """

    ids: Tensor
    probs: Tensor

    @staticmethod
    def of_entries(ids: Tensor, weights: Tensor) -> "DraftProbs":
        """Renormalised weights, at or above zero, at distinct ids, [N, M], in any order.

        Any penalties, temperature and truncation of the draft are in the weights already.
        """
        probs = weights.double() / weights.sum(dim=1, keepdim=True, dtype=torch.float64)
        probs = probs.to(weights.dtype)  # where the least of weights may vanish
        ids, order = ids.masked_fill(probs <= 0, PAD_ID).sort(dim=1)
        return DraftProbs(ids, probs.gather(1, order))

    @staticmethod
    def certain(token_ids: Tensor) -> "DraftProbs":
        """One-hot distributions, int64 [N]: what a drafter without probabilities draws from."""
        ids = token_ids.unsqueeze(1)
        return DraftProbs(ids, torch.ones(ids.shape, dtype=torch.float32, device=ids.device))

    @staticmethod
    def joined(parts: Sequence["DraftProbs"]) -> "DraftProbs":
        """The rows of all, one after the other, padded to the widest."""
        if len(parts) == 1:
            return parts[0]
        widths = [part.ids.shape[1] for part in parts]
        missing = [(0, max(widths) - width) for width in widths]
        return DraftProbs(
            torch.cat([pad(x.ids, m, value=PAD_ID) for x, m in zip(parts, missing, strict=True)]),
            torch.cat([pad(x.probs, m) for x, m in zip(parts, missing, strict=True)]),
        )

    def at(self, token_ids: Tensor) -> Tensor:
        """The probability of one token a row, int64 [N]; zero for a token that none was left."""
        return torch.where(self.ids == token_ids.unsqueeze(1), self.probs, 0.0).sum(dim=1)

    def rows(self, places: Tensor) -> "DraftProbs":
        """The distributions at these places, int64 [K]."""
        return DraftProbs(self.ids[places], self.probs[places])

    def spread(self, places: Tensor, num_rows: int) -> "DraftProbs":
        """`num_rows` distributions: these at `places`, int64 [N], and empty ones elsewhere."""
        ids = self.ids.new_full((num_rows, self.ids.shape[1]), PAD_ID)
        probs = self.probs.new_zeros(ids.shape)
        ids[places], probs[places] = self.ids, self.probs
        return DraftProbs(ids, probs)

    def sound(self, num_tokens: int) -> Tensor:
        """Which rows are distributions over `num_tokens` tokens, in canonical form; bool [N]."""
        padded = self.ids == PAD_ID
        possible = (self.probs > 0) & (self.ids >= 0) & (self.ids < num_tokens)
        entries = torch.where(padded, self.probs == 0, possible).all(dim=1)
        ascending = (self.ids[:, 1:] > self.ids[:, :-1]) | padded[:, 1:]
        total = self.probs.sum(dim=1, dtype=torch.float64)
        return entries & ascending.all(dim=1) & ((total - 1).abs() <= _MAX_EXCESS)

    def only(self, kept: Tensor) -> "DraftProbs":
        """Rows outside `kept`, bool [N], become empty distributions."""
        kept = kept.unsqueeze(1)
        return DraftProbs(
            torch.where(kept, self.ids, PAD_ID),
            torch.where(kept, self.probs, 0.0),  # also what a NaN turns into
        )

    def subtracted_from(self, probs: Tensor) -> Tensor:
        """`probs` [N, V] less these, entry by entry, unclamped; of sound distributions only."""
        # Padding subtracts zero from the last token. One real entry meets each id, so the order
        # in which a device adds cannot show.
        ids = self.ids.clamp(max=probs.shape[1] - 1)
        return probs.scatter_add(1, ids, -self.probs.to(probs.dtype))
