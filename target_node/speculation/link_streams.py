"""Which stream number a running sample has towards the draft processes, and what it was told of it.

A draft's knowledge is derived state: the target remembers up to which position it has sent tokens
and features, to which attachment (epoch), and sends the rest; a draft that lost something says from
where on. Knows sequences, not links.
"""

from dataclasses import dataclass

from target_node.sequence import Sequence


@dataclass(eq=False)
class LinkStream:
    """One running sample as the drafts know it."""

    number: int  # never used twice
    sequence: Sequence
    epoch: int = 0  # of the draft that was told; 0: nobody
    num_sent: int = 0  # positions below this were sent to it
    knows_sampling: bool = False  # whether the request's own sampling parameters were

    def told_up_to(self, epoch: int) -> int:
        """From which position on the draft of this epoch has to be told."""
        if epoch != self.epoch:
            self.epoch, self.num_sent, self.knows_sampling = epoch, 0, False
        return self.num_sent


class LinkStreams:
    """The streams of all live sequences."""

    def __init__(self) -> None:
        self._next_number = 1
        self._of: dict[Sequence, LinkStream] = {}
        self._by_number: dict[int, LinkStream] = {}

    def __len__(self) -> int:
        return len(self._of)

    def of(self, sequence: Sequence) -> LinkStream:
        """The stream of a live sequence; a new one at first sight."""
        stream = self._of.get(sequence)
        if stream is None:
            stream = LinkStream(self._next_number, sequence)
            self._next_number += 1
            self._of[sequence] = self._by_number[stream.number] = stream
        return stream

    def num_sent(self, sequence: Sequence, epoch: int) -> int:
        """Positions that the draft of this epoch has heard of."""
        stream = self._of.get(sequence)
        return stream.num_sent if stream is not None and stream.epoch == epoch else 0

    def numbered(self, number: int) -> LinkStream | None:
        return self._by_number.get(number)

    def forget(self, sequence: Sequence) -> LinkStream | None:
        """The sequence has ended: its stream, if it had one."""
        stream = self._of.pop(sequence, None)
        if stream is not None:
            del self._by_number[stream.number]
        return stream

    def round_of(self, number: int, epoch: int) -> int | None:
        """The coming round of a stream; None if it has ended, or another draft was told of it.

        Whose blocks would take the places of those of the one that drafts for it.
        """
        stream = self._by_number.get(number)
        if stream is None or stream.epoch != epoch:
            return None
        return stream.sequence.num_rounds
