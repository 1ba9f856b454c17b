# pyright: strict
"""Find stop strings in text that arrives in pieces. Knows no tokens and no requests."""

import msgspec


class StopScan(msgspec.Struct, frozen=True):
    """Text that is final now, and the stop string that ended it, if one did."""

    text: str
    stop_string: str | None = None


class StopStringMatcher:
    """Passes text on, up to the stop string that is complete first.

    Held back is exactly the longest tail that could still begin a stop string. When two stop
    strings complete on the same character, the longer one counts. The result does not depend on
    how the text was cut into pieces.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        # Longest first, so that the first to complete on a character is the longest.
        self._automata = [_Automaton(text) for text in sorted(set(stop), key=len, reverse=True)]
        self._held = ""

    def push(self, piece: str, *, armed: bool = True) -> StopScan:
        """Take the next piece; a stop string completed while not `armed` is ordinary text."""
        for position, char in enumerate(piece):
            completed = [automaton for automaton in self._automata if automaton.step(char)]
            if completed and armed:
                stop_string = completed[0].pattern
                seen = self._held + piece[: position + 1]
                self._held = ""
                return StopScan(seen[: -len(stop_string)], stop_string)
        text = self._held + piece
        cut = len(text) - max((automaton.num_matched for automaton in self._automata), default=0)
        self._held = text[cut:]
        return StopScan(text[:cut])

    def flush(self) -> str:
        """What is still held back, when no more text will come."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """Knuth-Morris-Pratt: constant work per character on average, whatever the stop string."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.num_matched = 0  # the last characters seen equal this many first ones of the pattern
        self._fallback = _borders(pattern)

    def step(self, char: str) -> bool:
        """Take one character; True if it completes the pattern."""
        num_matched = self.num_matched
        while num_matched > 0 and self.pattern[num_matched] != char:
            num_matched = self._fallback[num_matched]
        if self.pattern[num_matched] == char:
            num_matched += 1
        if num_matched == len(self.pattern):
            self.num_matched = self._fallback[num_matched]
            return True
        self.num_matched = num_matched
        return False


def _borders(pattern: str) -> list[int]:
    """Entry i: length of the longest proper prefix of pattern[:i] that is also its suffix."""
    borders = [0] * (len(pattern) + 1)
    length = 0
    for position in range(1, len(pattern)):
        while length > 0 and pattern[position] != pattern[length]:
            length = borders[length]
        if pattern[position] == pattern[length]:
            length += 1
        borders[position + 1] = length
    return borders
