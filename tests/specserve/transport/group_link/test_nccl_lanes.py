"""The lanes of NCCL over a library that behaves as torch's does where it fails, on a CPU.

What NCCL itself makes of frames is for tests/gpu; here are the threads that call it, and which
stream waits for what.
"""

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._C import _distributed_c10d
from torch._C._distributed_c10d import FileStore

from specserve.transport.group_link import nccl
from specserve.transport.group_link.lanes import MAX_LANDED, MAX_MOVING, Lanes, Transfer

CPU = torch.device("cpu")
FOUR = torch.arange(4, dtype=torch.int32)
_thread = threading.local()


class Group:
    """A group of two that has NCCL's face, and whose frames go through its store.

    A transfer that raises leaves its thread with calls that are never begun, of any group: torch
    opens a group of NCCL calls before a transfer, and closes it behind one that has not raised.
    The end of a group gives memory back, which waits for all transfers of its device.
    """

    spoiled: list[str] = []  # names of threads
    made: weakref.WeakSet["Group"] = weakref.WeakSet()  # a rank has a device of its own

    class Options:
        def __init__(self, **_: object) -> None:
            self.config = SimpleNamespace()

    def __init__(self, store, rank: int, size: int, options: Options) -> None:
        self._store, self._rank = store, rank
        self._count = self._num_waiting = 0
        self.made.add(self)
        self.is_broken = self._is_aborted = False

    def send(self, tensors, peer: int, tag: int):
        def wait() -> None:
            self._await(f"wanted {number}")
            self._store.set(f"frame {number}", tensors[0].numpy().tobytes().hex())

        number = self._begun()
        return SimpleNamespace(synchronize=wait if number else lambda: None)

    def recv(self, tensors, peer: int, tag: int):
        def wait() -> None:
            self._store.set(f"wanted {number}", "")
            self._await(f"frame {number}")
            frame = bytearray.fromhex(self._store.get(f"frame {number}").decode())
            tensors[0].copy_(torch.frombuffer(frame, dtype=torch.int32))

        number = self._begun()
        return SimpleNamespace(synchronize=wait if number else lambda: None)

    def abort(self) -> None:
        self._is_aborted = True
        deadline_s = time.monotonic() + 5
        while any(group._num_waiting for group in tuple(self.made) if group._rank == self._rank):
            if time.monotonic() > deadline_s:
                raise RuntimeError("the device is never idle")
            time.sleep(0.001)

    def _begun(self) -> int:
        """The number of a transfer, from 1; 0: one that never begins."""
        if getattr(_thread, "is_spoiled", False):
            return 0
        if self.is_broken:
            _thread.is_spoiled = True
            self.spoiled.append(threading.current_thread().name)
            raise RuntimeError("NCCL error: remote process exited")
        self._count += 1
        return self._count

    def _await(self, key: str) -> None:
        self._num_waiting += 1
        try:
            while not self._store.check([key]):
                if self._is_aborted:
                    raise RuntimeError("aborted")
                time.sleep(0.001)
        finally:
            self._num_waiting -= 1


class Stream:
    """What it was told to wait for."""

    def __init__(self, *_: object, **__: object) -> None:
        self.waited_for: list[Event] = []

    def wait_event(self, event: "Event") -> None:
        self.waited_for.append(event)


class Event:
    """On which stream it was recorded."""

    def __init__(self) -> None:
        self.stream: Stream | None = None

    def record(self) -> None:
        self.stream = getattr(_thread, "stream", None)

    def query(self) -> bool:
        return True


@contextmanager
def on_stream(stream: Stream):
    before, _thread.stream = getattr(_thread, "stream", None), stream
    yield
    _thread.stream = before


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_distributed_c10d, "ProcessGroupNCCL", Group, raising=False)
    monkeypatch.setattr(Group, "spoiled", [])
    monkeypatch.setattr(Group, "made", weakref.WeakSet())
    for name, stand_in in {
        "Stream": Stream,
        "stream": on_stream,
        "device": lambda _: nullcontext(),
        "Event": Event,
    }.items():
        monkeypatch.setattr(nccl.torch.cuda, name, stand_in)


def joined(path: Path) -> tuple[Lanes, Lanes]:
    with ThreadPoolExecutor(2) as pool:
        ends = [
            pool.submit(nccl.join, FileStore(str(path), -1), rank, CPU, 20.0) for rank in (0, 1)
        ]
        first, second = (end.result(30) for end in ends)
    return first, second


def cross(sender: Lanes, receiver: Lanes, *numbers: int) -> list[int]:
    entries = torch.tensor(numbers, dtype=torch.int32)
    parts = [entries[:1], entries[1:].view(torch.float32)]
    sent = sender.outgoing.send(parts, len(numbers))
    coming = receiver.incoming.receive(len(numbers))
    await_end(sent)
    await_end(coming)
    return coming.take().tolist()


def await_end(transfer: Transfer) -> None:
    deadline_s = time.monotonic() + 20
    while not transfer.is_done():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def no_thread_is_left() -> bool:
    return not [each for each in threading.enumerate() if each.name.startswith("nccl")]


def test_frames_cross_both_ways(tmp_path: Path):
    first, second = joined(tmp_path / "store")
    for number in range(20):
        frame = list(range(number, 2 * number + 1))
        assert cross(first, second, *frame) == frame
        assert cross(second, first, *frame[::-1]) == frame[::-1]
    first.close()
    second.close()
    assert no_thread_is_left()


@pytest.mark.parametrize("direction", ["outgoing", "incoming"])
def test_after_an_error_the_next_lanes_of_the_same_caller_work(tmp_path: Path, direction: str):
    first, second = joined(tmp_path / "0")
    assert cross(first, second, 1) == [1]
    lane = getattr(first, direction)
    lane._group.is_broken = True
    begin = {"outgoing": lambda: lane.send([FOUR], 4), "incoming": lambda: lane.receive(4)}
    late = [begin[direction]() for _ in range(1 if direction == "incoming" else 3)]
    for transfer in late:
        with pytest.raises(RuntimeError, match="remote process exited"):
            await_end(transfer)
    first.close()
    second.close()
    assert no_thread_is_left()
    assert Group.spoiled == ["nccl-0" if direction == "outgoing" else "nccl-1"]

    first, second = joined(tmp_path / "1")
    assert cross(first, second, 2) == [2]
    assert cross(second, first, 3, 4) == [3, 4]
    first.close()
    second.close()


def test_a_link_that_failed_is_freed_at_once(tmp_path: Path):
    first, second = joined(tmp_path / "store")
    lane = first.outgoing
    lane._group.is_broken = True  # pyright: ignore[reportAttributeAccessIssue]
    transfer = lane.send([FOUR], 4)
    with pytest.raises(RuntimeError, match="remote process exited"):
        await_end(transfer)
    kept = weakref.ref(lane._group)  # pyright: ignore[reportAttributeAccessIssue]
    gc.disable()
    try:
        first.close()
        second.close()
        del first, lane
        assert kept() is None
    finally:
        gc.enable()


def test_as_many_frames_as_may_move_lie_apart_and_are_copied_before_send_returns(tmp_path: Path):
    first, second = joined(tmp_path / "store")
    buffer, sent = torch.empty(4, dtype=torch.int32), []
    for number in range(MAX_MOVING):  # none of them leaves before somebody receives it
        sent.append(first.outgoing.send([buffer.fill_(number)], 4))
    buffer.fill_(-1)
    coming = []
    for _ in range(MAX_LANDED):
        coming.append(second.incoming.receive(4))
        await_end(coming[-1])
    assert [each.take().tolist() for each in coming] == [[n] * 4 for n in range(MAX_LANDED)]
    for transfer in sent:
        await_end(transfer)
    first.close()
    second.close()


def test_what_was_taken_stays_when_its_place_is_received_into_again(tmp_path: Path):
    first, second = joined(tmp_path / "store")
    taken = []
    for number in range(3 * MAX_LANDED):
        sent, coming = first.outgoing.send([FOUR + number], 4), second.incoming.receive(4)
        await_end(sent)
        await_end(coming)
        taken.append(coming.take())
    for number, entries in enumerate(taken):
        assert entries.tolist() == (FOUR + number).tolist()
    first.close()
    second.close()


def test_a_lane_waits_for_what_its_caller_reads_and_writes_and_nobody_for_a_lane(tmp_path: Path):
    """Without these waits NCCL sends what is not written yet, or overwrites what is being read."""
    compute = Stream()
    first, second = joined(tmp_path / "store")
    with on_stream(compute):
        for _ in range(MAX_LANDED):  # every place of both sides is used
            assert cross(first, second, 5, 6) == [5, 6]
        sending, receiving = (end._stream for end in (first.outgoing, second.incoming))
        sending.waited_for.clear()
        receiving.waited_for.clear()
        assert cross(first, second, 7, 8) == [7, 8]
    for stream in (sending, receiving):
        assert [event.stream for event in stream.waited_for] == [compute]
    assert compute.waited_for == []
    first.close()
    second.close()


def test_a_close_ends_what_waits_for_the_peer_and_begins_nothing_more(tmp_path: Path):
    first, second = joined(tmp_path / "store")
    waiting = first.incoming.receive(8)
    behind = [first.outgoing.send([FOUR], 4) for _ in range(3)]
    assert not waiting.is_done()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(first.close).result(10)
    second.close()
    assert no_thread_is_left()
    assert not any(map(is_over, behind[1:]))


def is_over(transfer: Transfer) -> bool:
    try:
        return transfer.is_done()
    except RuntimeError:
        return False


def test_a_second_lane_that_cannot_be_made_leaves_nothing_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made: list[str] = []

    class Scarce(Group):
        def __init__(self, *arguments: object) -> None:
            if made:
                raise RuntimeError("out of memory")
            made.append("one")

        def abort(self) -> None:
            made.append("aborted")

    monkeypatch.setattr(_distributed_c10d, "ProcessGroupNCCL", Scarce)
    with pytest.raises(RuntimeError, match="out of memory"):
        nccl.join(FileStore(str(tmp_path / "store"), -1), 0, CPU, 5.0)
    assert made == ["one", "aborted"]
    assert no_thread_is_left()
