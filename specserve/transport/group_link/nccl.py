"""Lanes over NCCL between two GPUs, or between two processes on one: see `set_nccl_environment`.

Each direction has a communicator and a stream of its own: transfers of one communicator happen one
after the other, so two processes that both send first would wait for each other for ever. Tensors
are joined in a buffer of their device, by the stream of whoever sends them, go from there to the
peer's buffer, and are copied out of it by the stream of whoever takes them; events say when a step
is done, and streams wait for them. The host waits for none of it, and never has what travels. NCCL
is called by a thread of the lane's own: see `call_thread`. Buffers are made before the first
transfer, since taking memory may wait for the whole device.

A transfer that was sent is over when NCCL has taken it, which buffers what is small: a peer that
has stopped may have hundreds of frames on their way. The ring of headers bounds them, a receiver
whose frame does not come ends the link, and the heartbeat tells of a draft that is silent.
"""

import datetime
import os
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from specserve.errors import Unsupported
from specserve.transport.group_link.call_thread import Call, CallThread
from specserve.transport.group_link.device_part import joined
from specserve.transport.group_link.lanes import MAX_ENTRIES, MAX_LANDED, MAX_MOVING, Lanes

_ENVIRONMENT = {
    # What the watchdog notices must not end the process, which is what it would do by default, ...
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # ... nor may a watchdog that is held up itself.
    # It would write down for others what was under way, by default for a minute a transfer, and
    # keep its group alive meanwhile. There is nothing to find out about a draft that died.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
    "TORCH_FR_BUFFER_SIZE": "0",  # the same, as newer versions call it
}
_FOR_EVER = datetime.timedelta(days=1)  # deadlines are `transit`'s affair
_POLL_S = 0.001  # while joining
_CALL_S = 0.1  # that beginning a transfer takes, by far


def prepare() -> None:
    """Once, before the first `join` and behind all groups whose failure should end the process.

    Raises:
        Unsupported: this build of torch has no NCCL.
    """
    if not torch.distributed.is_nccl_available():
        raise Unsupported("speculation.link: this build of torch has no NCCL (--link shm)")
    os.environ.update(_ENVIRONMENT)


class _Slot:
    """Room for one frame at a time.

    Its memory is of the stream on which frames are joined and copied, so that it is given to nobody
    else while these are under way; other streams wait for `is_free`.
    """

    def __init__(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            self.entries = torch.empty(MAX_ENTRIES, dtype=torch.int32, device=device)
            self.is_free = _recorded()


class NcclTransfer:
    """A frame on its way, in the first entries of a slot."""

    def __init__(self, call: Call[torch.cuda.Event], slot: _Slot, num_entries: int) -> None:
        self.began_s = time.monotonic()
        self._call = call
        self._slot, self._num_entries = slot, num_entries

    def is_done(self) -> bool:
        event = self._call.result()
        return event is not None and event.query()

    def take(self) -> Tensor:
        entries = self._slot.entries[: self._num_entries]
        with torch.cuda.device(entries.device):
            copy = entries.clone()
            self._slot.is_free = _recorded()
        return copy


class NcclLane:
    """One direction: its own communicator, stream, memory and thread."""

    def __init__(
        self, store: Store, rank: int, device: torch.device, *, name: str, num_slots: int
    ) -> None:
        # Missing from builds without CUDA.
        from torch._C._distributed_c10d import ProcessGroupNCCL

        options = ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options._timeout = _FOR_EVER
        options.config.max_ctas = 1  # a kernel that waits for the peer keeps one multiprocessor
        self._group = ProcessGroupNCCL(PrefixStore(name, store), rank, 2, options)
        self._peer, self._device = 1 - rank, device
        self._stream = torch.cuda.Stream(device, priority=-1)
        self._slots = [_Slot(device) for _ in range(num_slots)]
        self._num_begun = 0
        self._calls: CallThread[torch.cuda.Event] = CallThread(f"nccl-{name}")

    def send(self, tensors: Sequence[Tensor], num_entries: int) -> NcclTransfer:
        slot = self._next_slot()
        entries = slot.entries[:num_entries]
        with torch.cuda.device(self._device):
            joined(tensors, entries)
            is_joined = _recorded()

        def begin() -> torch.cuda.Event:
            with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                self._stream.wait_event(is_joined)
                work = self._group.send([entries], self._peer, 0)  # pyright: ignore[reportAttributeAccessIssue]
                work.synchronize()  # this stream with it, not the host
                return _recorded()

        return NcclTransfer(self._calls.make(begin), slot, num_entries)

    def receive(self, num_entries: int) -> NcclTransfer:
        slot = self._next_slot()
        entries = slot.entries[:num_entries]
        is_free = slot.is_free

        def begin() -> torch.cuda.Event:
            with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                self._stream.wait_event(is_free)
                work = self._group.recv([entries], self._peer, 0)  # pyright: ignore[reportAttributeAccessIssue]
                work.synchronize()  # this stream with it, not the host
                return _recorded()

        return NcclTransfer(self._calls.make(begin), slot, num_entries)

    def close(self) -> None:
        """Ends what is under way on this device, even if the peer is gone."""
        self._calls.end(_CALL_S)  # or it is stuck, which only `abort` can end
        self._group.abort()
        self._calls.join()

    def _next_slot(self) -> _Slot:
        # Transfers end, and are taken, in the order in which they begin, and no more are under way
        # or not yet taken than there are slots.
        slot = self._slots[self._num_begun % len(self._slots)]
        self._num_begun += 1
        return slot


def _recorded() -> torch.cuda.Event:
    """Of all that this thread's current stream was asked for."""
    event = torch.cuda.Event()
    event.record()
    return event


def join(store: Store, rank: int, device: torch.device, join_s: float) -> Lanes:
    """Two groups of two, never the default one; waits for the peer. Raises `FAILURES`."""
    lanes: list[NcclLane] = []
    with ExitStack() as made:
        made.callback(_close, lanes)
        for name, sends in (("0", rank == 0), ("1", rank == 1)):
            num_slots = MAX_MOVING if sends else MAX_LANDED
            lanes.append(NcclLane(store, rank, device, name=name, num_slots=num_slots))
        outgoing, incoming = lanes[rank], lanes[1 - rank]
        greeting = torch.zeros(1, dtype=torch.int32, device=device)
        for lane in lanes:  # in the same order on both sides: the first transfer connects
            transfer = lane.send([greeting], 1) if lane is outgoing else lane.receive(1)
            deadline_s = time.monotonic() + join_s
            while not transfer.is_done():
                if time.monotonic() > deadline_s:
                    raise TimeoutError("the peer does not answer over NCCL (--link shm)")
                time.sleep(_POLL_S)
        return Lanes(outgoing, incoming, made.pop_all().close)


def _close(lanes: Sequence[NcclLane]) -> None:
    """All at once. Raises what the first of them does.

    The end of one gives memory back, which waits for all that the device does, and what the other
    does for a peer that is gone ends only with the other.
    """
    failures: list[Exception] = []

    def close(lane: NcclLane) -> None:
        try:
            lane.close()
        except Exception as error:  # noqa: BLE001  # raised below
            failures.append(error)

    threads = [
        threading.Thread(target=close, args=(lane,), name="nccl-close", daemon=True)
        for lane in lanes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def set_nccl_environment(process: str, *, shares_device: bool) -> None:
    """All sockets on loopback; a process that shares its device becomes a host of its own.

    NCCL refuses two processes of one host on one device. Of two hosts it takes them, and carries
    everything through sockets: slowly, but by the code that runs between devices. `process` tells
    one from the other.
    """
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if shares_device:
        os.environ["NCCL_HOSTID"] = f"specserve {process}"
