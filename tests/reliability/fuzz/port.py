# pyright: strict
"""What the fuzzers of all ports have in common."""

from dataclasses import dataclass, field
from typing import Protocol


@dataclass
class Sent:
    """What went out, and what came back where something does."""

    num_frames: int = 0
    num_answers: dict[str, int] = field(default_factory=dict[str, int])  # by status

    def add(self, other: "Sent") -> None:
        self.num_frames += other.num_frames
        for status, count in other.num_answers.items():
            self.num_answers[status] = self.num_answers.get(status, 0) + count


class Port(Protocol):
    """One thing that a launch listens on."""

    name: str

    def send(self, count: int) -> Sent: ...

    def close(self) -> None: ...
