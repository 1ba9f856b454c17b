# pyright: strict
"""What is asked of an arm, and what the bench saw of its answers. Times are seconds."""

import msgspec


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts that are sent at once, each continued greedily by exactly `num_tokens` tokens."""

    prompts: list[list[int]]
    num_tokens: int


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stream, timed from the moment the whole job was handed over."""

    first_token_s: float
    num_tokens: int  # as the server counts them
    text: str = ""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One job, answered."""

    answers: list[Answer]
    total_s: float

    @property
    def tokens_per_s(self) -> float:
        """Of all streams together, prompts included."""
        return sum(answer.num_tokens for answer in self.answers) / self.total_s

    @property
    def first_token_s(self) -> float:
        """Mean over the streams."""
        return sum(answer.first_token_s for answer in self.answers) / len(self.answers)

    def without_texts(self) -> "Call":
        """As results keep it: the texts of a run are a megabyte that nobody reads again."""
        answers = [msgspec.structs.replace(answer, text="") for answer in self.answers]
        return msgspec.structs.replace(self, answers=answers)


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One engine with one kind of weights, decoding in one way, on so many cores."""

    peer: str
    mode: str
    weights: str  # precision in which they lie in memory and are read
    threads: int

    @property
    def name(self) -> str:
        return f"{self.peer} {self.mode} {self.weights}"


class Absent(msgspec.Struct, frozen=True, kw_only=True):
    """Who was to take part and does not, or no longer."""

    arm: Arm
    reason: str


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One call of one arm in one pass; calls of one pass had the same prompts."""

    arm: Arm
    num_requests: int
    pass_number: int
    call: Call
    # Of a core, used meanwhile by everything that is neither this server nor the client: other
    # people's work, and servers that should be waiting.
    foreign_share: float
