# pyright: strict
"""What launches on several machines say: to the processes that meet for them, and to each other.

One JSON object a line, tagged. All of it comes from other machines, so it is decoded strictly and
never more than that.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from specserve.processes.roster import ChildState
from specserve.settings.hosts import HostFacts

MOST_TEXT = 4096  # characters of a line for people
Line = Annotated[str, Meta(max_length=MOST_TEXT)]
_Rank = Annotated[int, Meta(ge=0, lt=64)]


# --- a launch and the process that meets for it ------------------------------------------------


class Meet(msgspec.Struct, frozen=True, kw_only=True, tag="meet"):
    """To the process: where, until when, and, but on node 0, what to say there."""

    host: str
    port: int
    timeout_s: float
    facts: HostFacts | None = None


class Arrived(msgspec.Struct, frozen=True, kw_only=True, tag="arrived"):
    """From that of node 0: a machine has come, whether it is wanted or not."""

    visit: Annotated[str, Meta(max_length=64)]
    facts: HostFacts


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """Of node 0 to one that has come: everybody's facts, or why it cannot be part of it."""

    visit: str
    facts: tuple[HostFacts, ...] = ()  # in order of node ranks
    token: str = ""  # of this launch; who connects later says it
    error: Line = ""
    code: str = ""  # gRPC status name


class Broken(msgspec.Struct, frozen=True, kw_only=True, tag="broken"):
    """From the process: nobody can be met."""

    error: Line


ToMeeting = Meet | Answer
FromMeeting = Arrived | Answer | Broken


# --- one launch and another ----------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """First of all, of one that connects to node 0."""

    node_rank: _Rank
    token: Annotated[str, Meta(max_length=64)]


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """There is nothing to say."""


class States(msgspec.Struct, frozen=True, tag="states"):
    """To node 0, whose page shows them: the processes of one machine."""

    states: Annotated[tuple[ChildState, ...], Meta(max_length=256)]


class HostIsReady(msgspec.Struct, frozen=True, tag="ready"):
    """To node 0: every process of one machine is ready."""


class HostFails(msgspec.Struct, frozen=True, kw_only=True, tag="fails"):
    """One machine gives up, or has heard that another one does."""

    detail: Line  # names the machine where it began
    code: Annotated[str, Meta(max_length=32)] = "UNAVAILABLE"  # gRPC status name
    is_consequence: bool = False  # it began elsewhere: see `Child.is_consequence`
    is_refusal: bool = False  # it cannot start as configured


class Leaves(msgspec.Struct, frozen=True, tag="leaves"):
    """To node 0: one that has draft processes alone was told to stop."""


class AskedToStop(msgspec.Struct, frozen=True, tag="stop"):
    """To node 0: one with ranks got a stop signal, which is meant for the service."""

    signum: Annotated[int, Meta(ge=1, le=64)]


class ServiceEnds(msgspec.Struct, frozen=True, kw_only=True, tag="ends"):
    """Of node 0: all ends as it should; at once if `is_cut`."""

    is_cut: bool = False


ToHost = HostFails | ServiceEnds | Beat
FromHost = Hello | Beat | States | HostIsReady | HostFails | Leaves | AskedToStop
