# pyright: strict
"""Lines that every stranger's garbage would add to the log, told at powers of two and in one line.

The libraries below both front ends write one for each request that is none, some with a traceback.
"""

import logging

_FLOODS = {
    "asyncio": ("socket.send() raised exception",),  # of clients that leave before their answer
    "uvicorn.error": ("Invalid HTTP request received",),
    "grpc._cython.cygrpc": (
        "Invalid encoding on",  # of a header's name or value
        "ExecuteBatchError raised in core",  # of callers that leave while they are answered
    ),
}


class _AtPowersOfTwo(logging.Filter):
    """Of lines that begin in one of a few ways: the first, the second, the fourth, and so on."""

    def __init__(self, beginnings: tuple[str, ...]) -> None:
        super().__init__()
        self._beginnings = beginnings
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if not message.startswith(self._beginnings):
            return True
        self._count += 1
        record.msg, record.args = f"{message[:200]} (the {self._count}. of its kind)", ()
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return self._count & (self._count - 1) == 0


def dam_log_floods() -> None:
    """From now on, in this process, whatever handlers there are.

    Counts begin anew with every call; lines of other kinds stay as they are.
    """
    for name, beginnings in _FLOODS.items():
        logging.getLogger(name).addFilter(_AtPowersOfTwo(beginnings))
