# pyright: strict
"""A sample's place in its grammar: one matcher, moved to whichever place somebody asks about.

Places are nodes of a tree of tokens. Those of drafted paths share the matcher with the sample's own
place, and the masks that were made for drafting are there when the same path is verified. Once the
sample advances, the other branches are dropped.
"""

from collections.abc import Sequence
from typing import Self

import llguidance
import numpy as np
from numpy.typing import NDArray


class _Node:
    """A place: what the text was before, and the token that led here."""

    __slots__ = ("bits", "depth", "following", "is_lost", "parent", "token_id")

    def __init__(self, parent: "_Node | None", token_id: int) -> None:
        self.parent = parent
        self.token_id = token_id
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.is_lost: bool = parent is not None and parent.is_lost  # the grammar forbids it
        self.following: dict[int, _Node] = {}
        self.bits: NDArray[np.uint8] | None = None  # of the tokens that may come next

    def then(self, token_id: int) -> "_Node":
        node = self.following.get(token_id)
        if node is None:
            node = self.following[token_id] = _Node(self, token_id)
        return node


class _Cursor:
    """A matcher, and the place it stands at."""

    def __init__(self, compiled: llguidance.LLMatcher, root: _Node, vocab_size: int) -> None:
        self._compiled = compiled
        self._nothing = np.zeros((vocab_size + 7) // 8, np.uint8)
        self._root = root
        self.matcher = compiled.deep_copy()
        self._at = root

    def bits(self, node: _Node) -> NDArray[np.uint8] | None:
        """As `GrammarState.allowed`."""
        if node.bits is None and self.move(node):
            mask = self.matcher.compute_bitmask()
            is_broken = self._renew_after_error()
            node.bits = self._nothing if is_broken else self._of_vocabulary(mask)
        return node.bits

    def _of_vocabulary(self, mask: bytes) -> NDArray[np.uint8]:
        return np.frombuffer(mask, np.uint8)[: len(self._nothing)]

    def move(self, node: _Node) -> bool:
        """Stand at `node`; False where the grammar forbids its way there."""
        if node.is_lost:
            return False
        ahead: list[_Node] = []
        at, num_back, wanted = self._at, 0, node
        while wanted is not at:
            if wanted.depth > at.depth:
                assert wanted.parent is not None
                ahead.append(wanted)
                wanted = wanted.parent
            else:
                assert at.parent is not None
                num_back, at = num_back + 1, at.parent
        if num_back:
            self.matcher.rollback(num_back)
        self._at = at
        return all(map(self._step, reversed(ahead)))

    def _step(self, node: _Node) -> bool:
        if not node.is_lost and self.matcher.try_consume_tokens([node.token_id]) == 1:
            self._at = node
            return True
        node.is_lost = True
        if self._renew_after_error():
            node.bits = self._nothing  # too much to compute is no freedom
        return False

    def _renew_after_error(self) -> bool:
        """Whether there was one. It stays with a matcher: take another, where all begins."""
        if not self.matcher.is_error():
            return False
        self.matcher, self._at = self._compiled.deep_copy(), self._root
        return True


class PlaceInGrammar:
    """`specserve.sampling.grammar.GrammarState` of one sample."""

    __slots__ = ("_cursor", "_is_fork", "_node", "end_token_ids")

    def __init__(
        self, compiled: llguidance.LLMatcher, end_token_ids: tuple[int, ...], vocab_size: int
    ) -> None:
        """At the beginning of a text; `compiled` is left as it is."""
        self._node = _Node(None, -1)
        self._cursor = _Cursor(compiled, self._node, vocab_size)
        self._is_fork = False
        self.end_token_ids = end_token_ids

    @property
    def is_over(self) -> bool:
        return self._cursor.move(self._node) and self._cursor.matcher.is_stopped()

    def append(self, token_id: int) -> None:
        before, self._node = self._node, self._node.then(token_id)
        if not self._is_fork:  # nobody goes another way any more
            before.following, before.bits = {token_id: self._node}, None

    def fork(self) -> Self:
        copy = type(self).__new__(type(self))
        copy._node, copy._cursor = self._node, self._cursor
        copy.end_token_ids = self.end_token_ids
        copy._is_fork = True
        return copy

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        if not self._cursor.move(self._node):
            return len(token_ids)
        return self._cursor.matcher.validate_tokens(list(token_ids))

    def allowed(self, held_back: Sequence[int]) -> NDArray[np.uint8] | None:
        bits = self._cursor.bits(self._node)
        return _without(bits, held_back) if bits is not None and held_back else bits


def _without(bits: NDArray[np.uint8], token_ids: Sequence[int]) -> NDArray[np.uint8]:
    """`bits` without those of these tokens, unless no other would be left."""
    ids = np.array(token_ids, np.int64)
    rest = bits.copy()
    np.bitwise_and.at(rest, ids >> 3, ~(np.uint8(1) << (ids & 7).astype(np.uint8)))
    return rest if rest.any() else bits
