# pyright: strict
"""What happens to a launch while it lasts, and how one ends: what its supervisor decides by."""

import msgspec

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


Event = StopRequested | Died | Reported | BegunAgain
