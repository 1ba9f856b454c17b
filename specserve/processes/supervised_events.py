# pyright: strict
"""What happens to a launch while it lasts, and how one ends: what its supervisor decides by."""

import msgspec

from specserve.errors import Unavailable
from specserve.processes.child import Child

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_REFUSED = 2  # could not start as configured


class Ending(msgspec.Struct, frozen=True):
    """How a launch ended; `error` is one line, empty when all went well."""

    exit_code: int
    error: str = ""
    code: str = ""  # gRPC status name


class StopRequested(msgspec.Struct, frozen=True):
    """SIGINT or SIGTERM arrived."""

    signum: int


class Died(msgspec.Struct, frozen=True):
    """A child ended, for whatever reason."""

    child: Child


class Reported(msgspec.Struct, frozen=True):
    """A child wrote its ready report, or, once ready, why it gives up."""

    child: Child


class BegunAgain(msgspec.Struct, frozen=True):
    """A draft process died; another life of it follows."""

    child: Child


class HostReady(msgspec.Struct, frozen=True, kw_only=True):
    """All processes of another machine are ready."""

    name: str


class HostEnded(msgspec.Struct, frozen=True, kw_only=True):
    """Another machine is gone, or gives up by its own word; to be asked what a `Child` is."""

    name: str
    detail: str  # names the machine where it began
    code: str = Unavailable.code
    is_consequence: bool = False
    is_refusal: bool = False  # it cannot start as configured
    is_needed: bool = True  # otherwise it has draft processes alone

    def describe_end(self) -> str:
        return self.detail


class ServiceEnded(msgspec.Struct, frozen=True, kw_only=True):
    """Node 0 says that the service ends as it should, at once if `is_cut`."""

    is_cut: bool


Event = StopRequested | Died | Reported | BegunAgain | HostReady | HostEnded | ServiceEnded
