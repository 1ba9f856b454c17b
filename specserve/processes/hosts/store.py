"""Machines that come together in a store of torch's: what they say of themselves, and the answer.

On node 0 the store is held, which ranks and draft processes use later, and it is passed on who
arrives and what they are answered. Elsewhere it is asked. Decides nothing. What is in the store is
text, and whoever reaches its port may have put it there.
"""

import datetime
import logging
import re
import secrets
import time

import msgspec
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from specserve.processes.hosts.lines import Lines
from specserve.processes.hosts.messages import Answer, Arrived, Meet, ToMeeting
from specserve.settings.hosts import HostFacts
from specserve.telemetry import one_line

VISITS = "visits"  # a key with a line for each that came
_LOOK_S = 0.1  # between looks
_MOST_BYTES = 1 << 16  # of what a machine says of itself
_VISIT = re.compile(r"[0-9a-f]{16}")  # as `ask` makes them

log = logging.getLogger(__name__)


def open_store(wish: Meet, listen_fd: int | None = None) -> TCPStore:
    """Its own on node 0, on a socket that listens already; else a way to that one.

    Raises RuntimeError where there is none within `wish.timeout_s`, or a little more.
    """
    return TCPStore(
        wish.host,
        wish.port,
        is_master=listen_fd is not None,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=wish.timeout_s),
        master_listen_fd=listen_fd,
    )


def hold(lines: Lines[ToMeeting], store: TCPStore) -> None:
    """Until the launch ends. Raises RuntimeError."""
    num_seen = 0
    while not lines.is_over:
        if lines.wait(_LOOK_S):
            for answer in lines.receive():
                assert isinstance(answer, Answer)
                store.set(f"answer/{answer.visit}", msgspec.json.encode(answer).decode())
        if not store.check([VISITS]):
            continue
        visits = store.get(VISITS).decode(errors="replace").split()
        for visit in visits[num_seen:]:
            facts = _decoded(store, f"facts/{visit}") if _VISIT.fullmatch(visit) else None
            if facts is not None:
                lines.send(Arrived(visit=visit, facts=facts))
        num_seen = len(visits)


def ask(store: TCPStore, facts: HostFacts) -> Answer:
    """Waits for it: the launch that wants it says when to give up. Raises RuntimeError."""
    visit = secrets.token_hex(8)
    store.set(f"facts/{visit}", msgspec.json.encode(facts).decode())
    # Behind the facts: who reads this finds them.
    store.append(VISITS, f"{visit}\n")  # pyright: ignore[reportAttributeAccessIssue]
    while not store.check([f"answer/{visit}"]):
        time.sleep(_LOOK_S)
    return msgspec.json.decode(store.get(f"answer/{visit}"), type=Answer)


def _decoded(store: TCPStore, key: str) -> HostFacts | None:
    """None for what no launch has put there."""
    if not store.check([key]):
        return None
    try:
        text = store.get(key)
        if len(text) <= _MOST_BYTES:
            return msgspec.json.decode(text, type=HostFacts)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        why = one_line(str(error))
        log.warning("somebody came who says nothing that is understood: %s", why)
    return None
