"""Products of torch's own operations.

A row's result of `PlainLinear` may depend on the rows beside it; that of `TiledLinear` does not, by
construction. See docs/decisions/0002-deterministic-arithmetic.md.
"""

from collections.abc import Sequence

import torch

from specserve.models.dealing import Share, Shares

PIECES = 8  # that a tiled product's output columns come in


class PlainLinear:
    """torch's own product, whose bits may depend on N."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self._weight)


class TiledLinear:
    """Products of one fixed shape only: tiles of `tile` rows, output columns in fixed pieces.

    Every multiplication the kernel ever sees has the same shape, whatever the batch and the number
    of ranks, so equal rows give equal bits on any kernel that is a function of its input.
    """

    def __init__(self, parts: Sequence[torch.Tensor], shares: Shares, tile: int) -> None:
        """`parts`: weights stacked, of each those rows that `shares` says."""
        self._pieces = [
            piece
            for part, share in zip(parts, shares, strict=True)
            for piece in fixed_pieces(part, share)
        ]
        self._tile = tile

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_tokens = x.shape[0]
        padded = torch.nn.functional.pad(x, (0, 0, 0, -num_tokens % self._tile))
        rows: list[torch.Tensor] = []
        for view in padded.split(self._tile):
            tile = view.clone()  # libraries may choose by alignment, and a view has any
            columns = [
                torch.nn.functional.linear(tile, piece)[:, wanted] for piece, wanted in self._pieces
            ]
            rows.append(torch.cat(columns, dim=1))
        return torch.cat(rows)[:num_tokens]


def fixed_pieces(part: torch.Tensor, share: Share) -> list[tuple[torch.Tensor, slice]]:
    """A weight's rows [share, in] in pieces that any number of ranks would use, all of one shape.

    With each, which rows of it are of the share. What is another rank's is zeros: a kernel computes
    a column from that column, in its place in the shape.
    """
    width = -(-share.size // PIECES)
    pieces: list[tuple[torch.Tensor, slice]] = []
    for first in range(share.start // width * width, share.stop, width):
        start, stop = max(first, share.start), min(first + width, share.stop)
        wanted = slice(start - first, stop - first)
        piece = part.new_zeros(width, part.shape[1])
        piece[wanted] = part[start - share.start : stop - share.start]
        pieces.append((piece, wanted))
    return pieces
