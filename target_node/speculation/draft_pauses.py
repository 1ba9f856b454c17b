# pyright: strict
"""When to stop drafting for a while, since it costs more than it brings.

Prices (`planning.round_prices`) keep drafted tokens from being verified where that does not pay,
but beside the target drafting itself takes time, accepted or not. So what rounds with drafts bring,
the tokens they make beyond those of plain rounds, is held against what they cost, the time they
take beyond that of plain ones. A few plain rounds now and then show what those take. Where drafts
bring far less than they cost the rounds of that load are plain ones, but for a few now and then
with drafts: texts change, and so do times.

Receives counts and times of rounds that are over, never tokens: whether a round drafts does not
depend on what would be drawn in it.
"""

import enum

_FIRST_ROUNDS = 64  # with drafts, before plain ones are looked at
_NEXT_ROUNDS = 1024  # the same later, where drafts paid
_LOOK, _TRIAL = 8, 16  # plain rounds among such with drafts, and the other way round
# Of what drafts cost that they have to bring. Who asked for drafts is to have them where they are
# about as good as none; and what a few rounds show is off by a third or so.
_LEAST_SHARE = 0.5
_LEAST_COST = 0.1  # of a plain round: what costs less than that besides may go on
_FIRST_PAUSE, _LONGEST_PAUSE = 256, 8192  # rounds; each pause is twice the one before
_MOST = 1.5  # times the usual is the most that a round counts: others may have had the core


class _Phase(enum.Enum):
    """What a load's rounds do, and for how many of them."""

    DRAFT = enum.auto()
    LOOK = enum.auto()  # plain rounds, for their times
    PAUSE = enum.auto()  # the same, since drafts do not pay
    TRIAL = enum.auto()  # whether they still do not


class DraftPauses:
    """Of one load. Ask `drafts` as a round begins, and `observe` it when it is over."""

    def __init__(self) -> None:
        self.num_pauses = 0  # begun so far
        self._pause = _FIRST_PAUSE  # how long the next one is
        self._drafted, self._plain = _Mean(_FIRST_ROUNDS), _Mean(2 * _LOOK)  # seconds of rounds
        self._tokens = _Mean(_FIRST_ROUNDS)  # of a row in a round with drafts
        self._begin(_Phase.DRAFT, _FIRST_ROUNDS)

    @property
    def drafts(self) -> bool:
        """Whether the round that begins does."""
        return self._phase in (_Phase.DRAFT, _Phase.TRIAL)

    @property
    def tries_again(self) -> bool:
        """Whether it is the first that does after a pause."""
        return self._phase is _Phase.TRIAL and self._is_first

    def observe(self, tokens: float, seconds: float) -> None:
        """A round: how many tokens a row made on average, and how long it took."""
        if self._is_first:  # contexts catch up in it, and caches: it says nothing of others
            self._is_first = False
            return
        if self.drafts:
            self._drafted.add(min(seconds, _MOST * self._drafted.value or seconds))
            self._tokens.add(tokens)
        else:
            self._plain.add(min(seconds, _MOST * self._plain.value or seconds))
        self._left -= 1
        if not self._left:
            self._go_on()

    def _go_on(self) -> None:
        match self._phase:
            case _Phase.DRAFT:
                self._begin(_Phase.LOOK, _LOOK)
            case _Phase.PAUSE:
                self._drafted, self._tokens = _Mean(_FIRST_ROUNDS), _Mean(_FIRST_ROUNDS)
                self._begin(_Phase.TRIAL, _TRIAL)
            case _Phase.LOOK if self._pays:
                self._pause = _FIRST_PAUSE
                self._begin(_Phase.DRAFT, _NEXT_ROUNDS)
            case _Phase.TRIAL if self._pays:
                self._begin(_Phase.DRAFT, _FIRST_ROUNDS)
            case _Phase.LOOK | _Phase.TRIAL:
                self.num_pauses += 1
                self._begin(_Phase.PAUSE, self._pause)
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _begin(self, phase: _Phase, num_rounds: int) -> None:
        self._phase, self._left, self._is_first = phase, num_rounds, True

    @property
    def _pays(self) -> bool:
        """Gain and cost as shares of what a plain round makes, and takes."""
        gain = self._tokens.value - 1
        cost = self._drafted.value / self._plain.value - 1 if self._plain.value else 0.0
        return gain >= _LEAST_SHARE * cost or cost - gain < _LEAST_COST


class _Mean:
    """Of so many latest values, about."""

    def __init__(self, size: int) -> None:
        self.value = 0.0
        self._size = size
        self._count = 0

    def add(self, value: float) -> None:
        self._count = min(self._count + 1, self._size)
        self.value += (value - self.value) / self._count
