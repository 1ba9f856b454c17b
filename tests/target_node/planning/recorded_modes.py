"""Modes that keep what they are asked, for tests of `auto` itself, and a chooser that is told."""

from types import SimpleNamespace

from specserve.sampling.verification.method import VerificationMethod
from target_node.speculation.auto import AutoSpeculation
from target_node.speculation.source import NoSpeculation
from tests.backends.chosen import BACKEND


class Recording(NoSpeculation):
    """What a mode is asked."""

    def __init__(self, num_unready: int = 0) -> None:
        self.asked: list[str] = []
        self.num_unready = num_unready

    def propose(self, rows):
        self.asked.append("propose")
        return rows

    def warm_up(self, rows):
        self.asked.append("warm_up")
        return len(self.asked) > self.num_unready

    def poll(self):
        self.asked.append("poll")

    def forget(self, sequence):
        self.asked.append("forget")

    def close(self):
        self.asked.append("close")


def decoding_row(is_decoding: bool = True, temperature: float = 1.0, method: str = "coupled"):
    sampling = SimpleNamespace(temperature=temperature)
    request = SimpleNamespace(sampling=sampling, method=VerificationMethod(method))
    return SimpleNamespace(sequence=SimpleNamespace(is_decoding=is_decoding, request=request))


def auto(modes, *drafted) -> AutoSpeculation:
    """`drafted`: what there is to say of draft processes' modes."""
    return AutoSpeculation(modes, lambda sequence: sequence.request.method, BACKEND, *drafted)


class Choosing:
    """In place of `ModeChooser`: what a test says."""

    def __init__(self) -> None:
        self.mode = "off"
        self.observed: list[tuple[str, int | None]] = []
        self.seconds: list[float] = []

    def next_run(self, load, *, but=()):
        return self.mode, 1

    def preferred(self, load, *, but=()):
        return self.mode

    def best(self, load, *, but):
        self.left_out = but
        return "off"

    def observe(self, load, mode, num_tokens, seconds, *, age):
        self.observed.append((mode, age))
        self.seconds.append(seconds)
