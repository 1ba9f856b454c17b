# pyright: strict
"""Who owns which KV block, and which blocks hold a prefix worth keeping. Knows no tensors.

A block is free, owned (reference count >= 1), or evictable: owned by nobody but still holding a
sealed prefix, and reused in least-recently-used order when free blocks run out.

Prefixes are found by a keyed hash of (parent, tokens), so that nobody who does not know the
process's secret can construct a collision; requests with different salts share nothing.
"""

import hashlib
import secrets
from array import array
from collections import OrderedDict
from collections.abc import Sequence

NULL_BLOCK = 0  # never allocated: the cache pads block tables with it


class BlockPool:
    """Reference-counted blocks of `block_size` tokens with a prefix cache."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_cache: bool) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks - 1  # usable: block 0 is the null block
        self.prefix_cache = prefix_cache
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._references = [0] * num_blocks
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._fresh: list[int] = []
        self._key = secrets.token_bytes(32)

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` could hand out now."""
        return len(self._free) + len(self._evictable)

    @property
    def num_cached(self) -> int:
        """Blocks that hold a sealed prefix, owned or not."""
        return len(self._hash_of)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks; the caller has checked `num_free`."""
        if count > self.num_free:
            raise RuntimeError(f"asked for {count} KV blocks with {self.num_free} free")
        taken: list[int] = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict()
            self._references[block] = 1
            taken.append(block)
        self._fresh += taken
        return taken

    def take_fresh(self) -> list[int]:
        """Blocks handed out since the last call. They hold somebody's old KV: erase them first."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def release(self, block_ids: Sequence[int]) -> None:
        """Give references back, last block first: a prefix is evicted from its tail."""
        for block in reversed(block_ids):
            if self._references[block] <= 0:
                raise RuntimeError(f"KV block {block} released more often than taken")
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._hash_of:
                    self._evictable[block] = None
                else:
                    self._free.append(block)

    def root(self, salt: str) -> bytes:
        """The parent hash of a first block."""
        return hashlib.blake2b(salt.encode(), key=self._key, digest_size=16).digest()

    def child(self, parent: bytes, tokens: Sequence[int]) -> bytes:
        """The hash of a full block of `tokens` after `parent`."""
        data = parent + array("q", tokens).tobytes()
        return hashlib.blake2b(data, key=self._key, digest_size=16).digest()

    def find(self, tokens: Sequence[int], salt: str, hashes: list[bytes]) -> list[int]:
        """The blocks of the longest cached prefix of `tokens`. Takes nothing.

        `hashes` are those of the first full blocks of `tokens`, as far as somebody had to know
        them, and grow here. At least one token is left over, because somebody has to compute the
        next one.
        """
        blocks: list[int] = []
        size = self.block_size
        num_full = (len(tokens) - 1) // size if self.prefix_cache else 0
        for index in range(num_full):
            if index == len(hashes):
                parent = hashes[-1] if hashes else self.root(salt)
                hashes.append(self.child(parent, tokens[index * size : (index + 1) * size]))
            block = self._block_of.get(hashes[index])
            if block is None:
                break
            blocks.append(block)
        return blocks

    def touch(self, cached: Sequence[int]) -> None:
        """Somebody waits for these: they are evicted after all others, tails first."""
        for block in reversed(cached):
            if block in self._evictable:
                self._evictable.move_to_end(block)

    def num_free_without(self, cached: Sequence[int]) -> int:
        """Blocks that `allocate` could hand out once these cached ones are taken."""
        return self.num_free - sum(block in self._evictable for block in cached)

    def take(self, cached: Sequence[int]) -> None:
        """References to blocks that `find` has found."""
        for block in cached:
            self._references[block] += 1
            self._evictable.pop(block, None)

    def seal(self, block: int, digest: bytes) -> None:
        """Offer a full, computed block to later requests. An equal prefix already there stays."""
        if self.prefix_cache and digest not in self._block_of:
            self._block_of[digest] = block
            self._hash_of[block] = digest

    def forget(self, block_ids: Sequence[int]) -> None:
        """Withdraw blocks from the prefix cache: their contents cannot be trusted."""
        for block in block_ids:
            digest = self._hash_of.pop(block, None)
            if digest is not None:
                del self._block_of[digest]

    def _evict(self) -> int:
        block, _ = self._evictable.popitem(last=False)
        self.forget([block])
        return block
