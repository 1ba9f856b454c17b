"""Which rows run in the next forward, and who gives way when KV blocks run out.

Decoding rows come first, so that a long prompt never stalls them; what is left of the token budget
goes to prefill chunks in order of priority and arrival. A prompt's blocks are taken at admission,
a decoding row's as it grows; when none is left, the last in order gives all of its own back and is
recomputed later. Knows tokens and blocks, not tensors.

While a forward runs, `look_ahead` makes the round after it, for the case that rows end at most.
"""

import bisect
from dataclasses import dataclass, replace

from specserve.errors import InvalidField
from specserve.types import Speculation
from target_node.blocks import BlockPool
from target_node.sequence import Sequence


@dataclass(frozen=True)
class Row:
    """One sequence's share of a forward: its next `num_tokens` tokens.

    Logits are wanted at the last `num_logits` of them. `samples` says whether they yield the
    sequence's next tokens. A decoding row is an anchor and the first `verify_len` drafted tokens.
    """

    sequence: Sequence
    num_tokens: int
    num_logits: int
    samples: bool
    speculation: Speculation | None = None
    verify_len: int = 0

    @property
    def drafted(self) -> tuple[int, ...]:
        """The drafted tokens to verify."""
        return self.speculation.token_ids[: self.verify_len] if self.speculation else ()

    def verifying(self, speculation: Speculation, verify_len: int) -> "Row":
        """This row of one anchor, with drafted tokens behind it."""
        size = 1 + verify_len
        return replace(
            self, speculation=speculation, verify_len=verify_len, num_tokens=size, num_logits=size
        )


class Scheduler:
    """Admission, chunking and preemption over one `BlockPool`."""

    def __init__(self, pool: BlockPool, *, max_batch_rows: int, max_batch_tokens: int) -> None:
        if max_batch_tokens < max_batch_rows:
            raise InvalidField(
                "engine.max_batch_tokens",
                f"{max_batch_tokens} is less than engine.max_batch_rows, {max_batch_rows}",
            )
        self.pool = pool
        self.max_batch_rows = max_batch_rows
        self.max_batch_tokens = max_batch_tokens
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._ahead: list[Row] = []  # the next round, if no sequence comes or starts again

    def add(self, sequence: Sequence) -> None:
        bisect.insort(self.waiting, sequence, key=lambda s: s.order)

    def remove(self, sequence: Sequence) -> None:
        """Take a finished or aborted sequence out and give its blocks back."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._release(sequence)

    def next_batch(self) -> list[Row]:
        """The rows of the next forward; empty when nothing can run."""
        ahead, self._ahead = self._ahead, []
        if ahead and not self.waiting:  # others have ended; there is room for who is left
            return [row for row in ahead if row.sequence.block_ids and self._grow(row.sequence)]
        rows = self._decode_rows()
        decoding = {row.sequence for row in rows}
        budget = self.max_batch_tokens - len(rows)
        self._admit(budget)
        for sequence in self.running:
            if sequence in decoding:
                continue
            if budget <= 0:
                break
            row = self._prefill_row(sequence, min(sequence.num_pending, budget))
            rows.append(row)
            budget -= row.num_tokens
        return rows

    def look_ahead(self, rows: list[Row], gamma: int) -> None:
        """The forward of `rows` has begun: make the round after it, as far as it is known.

        It has the rows that run now, if there are blocks for the worst case: that each makes
        gamma + 1 tokens in this round and in the next. They are taken once it is known how many
        were made: until then nobody else takes any, and nobody gives way. Where there are too few,
        where a prompt is read or somebody waits, the next round is made once this is over.
        """
        self._ahead = []
        if self.waiting or len(rows) != len(self.running) or not all(row.samples for row in rows):
            return
        missing = sum(self._missing_blocks(each, 2 * (gamma + 1)) for each in self.running)
        if missing + len(self.running) > self.pool.num_free:
            return
        self._ahead = [Row(each, num_tokens=1, num_logits=1, samples=True) for each in self.running]

    def room_for_drafts(self, rows: list[Row]) -> int:
        """Drafted tokens that the forward of `rows` can take besides."""
        return max(0, self.max_batch_tokens - sum(row.num_tokens for row in rows))

    def drafts_with_blocks(self, rows: list[Row], wanted: list[int]) -> list[int]:
        """How many of its `wanted` drafted tokens each row may have blocks for, first come first.

        A guess is worth no preemption, neither now nor in the next round: one block for every
        running sequence stays free. Nothing is taken yet, and all of it may be taken together.
        """
        spare = max(0, self.pool.num_free - len(self.running))
        granted: list[int] = []
        for row, num_wanted in zip(rows, wanted, strict=True):
            sequence = row.sequence
            slots = (len(sequence.block_ids) + spare) * self.pool.block_size
            granted.append(max(0, min(num_wanted, slots - len(sequence.token_ids))))
            spare -= self._missing_blocks(sequence, granted[-1])
        return granted

    def with_drafts(self, row: Row, speculation: Speculation, verify_len: int) -> Row:
        """`row` with drafted tokens and the blocks for them.

        `verify_len` is at most what `drafts_with_blocks` granted in this round.
        """
        if not verify_len:
            return row
        sequence = row.sequence
        sequence.block_ids += self.pool.allocate(self._missing_blocks(sequence, verify_len))
        return row.verifying(speculation, verify_len)

    def _missing_blocks(self, sequence: Sequence, verify_len: int = 0) -> int:
        """Blocks that its tokens and `verify_len` more need besides those it has."""
        wanted = self.pool.num_blocks_for(len(sequence.token_ids) + verify_len)
        return max(0, wanted - len(sequence.block_ids))

    def commit(self, row: Row, num_accepted: int = 0) -> None:
        """The forward of `row` is done: the KV of its tokens counts as computed.

        Not that of rejected drafts, which the next round overwrites. The accepted ones and what
        follows them have been appended to the sequence.

        Full blocks go to the prefix cache once logits that rest on them were found finite, so that
        nobody inherits KV that never passed a check.
        """
        sequence, pool = row.sequence, self.pool
        sequence.num_computed += row.num_tokens - row.verify_len + num_accepted
        sequence.num_rounds += 1
        if not row.samples:
            return
        if num_accepted < row.verify_len:
            self._give_back_surplus(sequence)
        size = pool.block_size
        for index in range(len(sequence.block_hashes), sequence.num_computed // size):
            hashes = sequence.block_hashes
            parent = hashes[-1] if hashes else pool.root(sequence.request.cache_salt)
            hashes.append(pool.child(parent, sequence.token_ids[index * size : (index + 1) * size]))
            pool.seal(sequence.block_ids[index], hashes[-1])

    def _give_back_surplus(self, sequence: Sequence) -> None:
        """Blocks that rejected drafts leave behind: somebody else may need them more."""
        needed = self.pool.num_blocks_for(len(sequence.token_ids))
        self.pool.release(sequence.block_ids[needed:])
        del sequence.block_ids[needed:]

    def _decode_rows(self) -> list[Row]:
        rows: list[Row] = []
        for sequence in list(self.running):
            # A victim of this loop has left `running` and is never before the row it gave way to.
            if sequence.is_decoding and sequence.block_ids and self._grow(sequence):
                rows.append(Row(sequence, num_tokens=1, num_logits=1, samples=True))
        return rows

    def _grow(self, sequence: Sequence) -> bool:
        """Make room for the sequence's next token, at the expense of the last in order."""
        missing = self._missing_blocks(sequence)
        while missing > self.pool.num_free:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.block_ids += self.pool.allocate(missing)
        return True

    def redo(self, sequence: Sequence) -> None:
        """A running sequence's KV is not to be trusted: compute it again from its tokens."""
        sequence.num_rounds += 1  # what this round drew is never drawn again
        self._preempt(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.num_computed = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.add(sequence)

    def _admit(self, budget: int) -> None:
        """Start waiting sequences while a row, tokens of the budget and blocks are left."""
        budget -= sum(s.num_pending for s in self.running if not s.is_decoding)
        while self.waiting and budget > 0 and len(self.running) < self.max_batch_rows:
            sequence = self.waiting[0]
            if not self._take_blocks(sequence):
                return
            del self.waiting[0]
            bisect.insort(self.running, sequence, key=lambda s: s.order)
            budget -= sequence.num_pending

    def _take_blocks(self, sequence: Sequence) -> bool:
        """Blocks for all of a waiting sequence's tokens, cached ones first; False if too few."""
        pool = self.pool
        blocks: list[int] = []
        # A prompt log probability that is still owed needs its position computed.
        if not sequence.owes_prompt_logprobs:
            salt, hashes = sequence.request.cache_salt, sequence.prefix_hashes
            blocks = pool.find(sequence.token_ids, salt, hashes)
        missing = pool.num_blocks_for(len(sequence.token_ids)) - len(blocks)
        # Preempting at once what was just admitted would be work for nothing: one spare block each.
        if missing + len(self.running) > pool.num_free_without(blocks):
            pool.touch(blocks)
            return False
        pool.take(blocks)
        sequence.block_ids = blocks + pool.allocate(missing)
        sequence.block_hashes = sequence.prefix_hashes[: len(blocks)]
        sequence.num_computed = len(blocks) * pool.block_size
        if not sequence.admitted:
            sequence.num_cached = sequence.num_computed
            sequence.admitted = True
        return True

    def _prefill_row(self, sequence: Sequence, num_tokens: int) -> Row:
        samples = num_tokens == sequence.num_pending
        num_logits = int(samples)
        if sequence.owes_prompt_logprobs:
            # Position p predicts prompt token p + 1; each is reported once, also after preemption.
            first = max(sequence.num_computed, sequence.num_prompt_logprobs)
            num_logits = max(num_logits, sequence.num_computed + num_tokens - first)
        return Row(sequence, num_tokens, num_logits, samples)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_ids)
        sequence.block_ids, sequence.block_hashes = [], []
