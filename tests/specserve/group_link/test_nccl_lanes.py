"""The lanes of NCCL over a library that behaves as torch's does where it fails, on a CPU.

What NCCL itself makes of frames is for tests/gpu; here are the threads that call it.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._C import _distributed_c10d
from torch._C._distributed_c10d import FileStore, ProcessGroupGloo

from specserve.group_link import nccl
from specserve.group_link.lanes import Lanes, Transfer

CPU = torch.device("cpu")
_thread = threading.local()


class Group:
    """Gloo's transfers behind NCCL's face.

    A transfer that raises leaves its thread with calls that are never begun, of any group: torch
    opens a group of NCCL calls before a transfer, and closes it behind one that has not raised.
    """

    spoiled: list[str] = []  # names of threads

    class Options:
        def __init__(self, **_: object) -> None:
            self.config = SimpleNamespace()

    def __init__(self, store, rank: int, size: int, _options: Options) -> None:
        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=20)
        self._gloo = ProcessGroupGloo(store, rank, size, options)
        self.is_broken = False

    def send(self, tensors, peer: int, tag: int):
        return self._begin(lambda: self._gloo.send(tensors, peer, tag))

    def recv(self, tensors, peer: int, tag: int):
        return self._begin(lambda: self._gloo.recv(tensors, peer, tag))

    def abort(self) -> None:
        self._gloo.abort()

    def _begin(self, call):
        if getattr(_thread, "is_spoiled", False):
            return SimpleNamespace(synchronize=lambda: None)
        if self.is_broken:
            _thread.is_spoiled = True
            self.spoiled.append(threading.current_thread().name)
            raise RuntimeError("NCCL error: remote process exited")
        work = call()
        return SimpleNamespace(synchronize=work.wait)


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_distributed_c10d, "ProcessGroupNCCL", Group, raising=False)
    monkeypatch.setattr(Group, "spoiled", [])
    empty = torch.empty

    def pageable(*sizes: int, pin_memory: bool = False, **options: object) -> torch.Tensor:
        return empty(*sizes, **options)

    monkeypatch.setattr(nccl.torch, "empty", pageable)
    for name, stand_in in {
        "Stream": lambda *_, **__: None,
        "stream": lambda _: nullcontext(),
        "device": lambda _: nullcontext(),
        "Event": lambda: SimpleNamespace(record=lambda: None, query=lambda: True),
    }.items():
        monkeypatch.setattr(nccl.torch.cuda, name, stand_in)


def joined(path: Path) -> tuple[Lanes, Lanes]:
    with ThreadPoolExecutor(2) as pool:
        ends = [
            pool.submit(nccl.join, FileStore(str(path), -1), rank, CPU, 20.0) for rank in (0, 1)
        ]
        first, second = (end.result(30) for end in ends)
    return first, second


def cross(sender: Lanes, receiver: Lanes, frame: bytes) -> bytes:
    sent, coming = sender.outgoing.send([frame], len(frame)), receiver.incoming.receive(len(frame))
    await_end(sent)
    await_end(coming)
    return bytes(coming.frame())


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
        frame = bytes([number]) * (number + 1)
        assert cross(first, second, frame) == frame
        assert cross(second, first, frame[::-1]) == frame[::-1]
    first.close()
    second.close()
    assert no_thread_is_left()


def test_after_an_error_the_next_lanes_of_the_same_caller_work(tmp_path: Path):
    first, second = joined(tmp_path / "0")
    assert cross(first, second, b"sound") == b"sound"
    first.outgoing._group.is_broken = True  # pyright: ignore[reportAttributeAccessIssue]
    late = [first.outgoing.send([b"late"], 4) for _ in range(3)]
    for transfer in late:
        with pytest.raises(RuntimeError, match="remote process exited"):
            await_end(transfer)
    first.close()
    second.close()
    assert no_thread_is_left()
    assert Group.spoiled == ["nccl-0"]

    first, second = joined(tmp_path / "1")
    assert cross(first, second, b"again") == b"again"
    assert cross(second, first, b"and back") == b"and back"
    first.close()
    second.close()
