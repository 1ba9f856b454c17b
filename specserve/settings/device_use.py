# pyright: strict
"""Where one more device serves requests faster: in a draft process, or in the target.

In a draft process it takes drafting off the target's path (SSD). In the target it makes forwards
shorter, and drafting beside it goes on. Times are in units of the target's forward of a round
without the device:

    drafting:       slower                         a round, which makes `kept` times the tokens
    in the target:  draft_share / draft_scaling + 1 / target_scaling

So a device should draft where drafting takes a large share of a round and the target gains little
by being split further. docs/scaling.md shows both against simulated services.
"""

from typing import NamedTuple


class DeviceUse(NamedTuple):
    """What the choice depends on."""

    draft_share: float  # drafting a round beside the target takes, in forwards of that round
    target_scaling: float  # times as fast as forwards get with the device
    draft_scaling: float = 1.0  # ... and drafting beside the target
    # Tokens a round with the draft process, over those of drafting beside the target: misses make
    # fewer, see `kept_tokens`. 1: every outcome has been prepared in time.
    kept: float = 1.0
    slower: float = 1.0  # times as long as forwards take beside a busy draft process

    @property
    def round_in_target(self) -> float:
        """Of synchronous speculation with the device, in forwards without it."""
        return self.draft_share / self.draft_scaling + 1 / self.target_scaling


def gain_of_drafting(use: DeviceUse) -> float:
    """Tokens a second with the device in a draft process, over those with it in the target.

    Drafts are taken to be done in time: what is late is a miss, and belongs to `kept`.
    """
    return use.kept * use.round_in_target / use.slower


def least_draft_share(
    target_scaling: float, *, draft_scaling: float = 1.0, kept: float = 1.0, slower: float = 1.0
) -> float:
    """From which share of a forward that drafting takes on the device should draft; at least 0."""
    return max(0.0, draft_scaling * (slower / kept - 1 / target_scaling))


def kept_tokens(hit_rate: float, accept_len: float) -> float:
    """Of rounds of `accept_len` tokens, where who misses decodes plainly."""
    return hit_rate + (1 - hit_rate) / accept_len
