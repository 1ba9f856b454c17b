# pyright: strict
"""What speculative rounds leave behind: of one row, of one turn of the node, of a whole run.

Pure records that travel as JSON. Times are seconds.
"""

import msgspec


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one row after its first token."""

    room: int  # tokens that the row could still get before it
    num_emitted: int
    verify_len: int = 0  # 0: nothing was drafted, or nothing worth verifying
    num_accepted: int = 0


class Answer(msgspec.Struct, kw_only=True):
    """The text of one row, and the rounds that made it but for its first token."""

    token_ids: list[int] = []
    rounds: list[Round] = []


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of the node's loop; `rest_s` is what is neither drafting nor the forward."""

    is_decode: bool  # every row decoded
    num_rows: int
    num_emitted: int
    turn_s: float
    draft_s: float
    forward_s: float

    @property
    def rest_s(self) -> float:
        return self.turn_s - self.draft_s - self.forward_s


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Some prompts continued side by side."""

    answers: list[Answer]
    turns: list[Turn]
