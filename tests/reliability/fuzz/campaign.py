"""A launch, everything that it listens on, and frames to all of it at once."""

import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from specserve.client import Client
from tests.exactness.workload import MAX_MODEL_LEN, run
from tests.reliability.fuzz.bystander import Answers, Bystander, plainly, requests_of
from tests.reliability.fuzz.control_frames import SEEDS, ControlFrames
from tests.reliability.fuzz.grpc_frames import GrpcFrames
from tests.reliability.fuzz.http_frames import HttpFrames
from tests.reliability.fuzz.link_frames import LinkFrames
from tests.reliability.fuzz.port import Port, Sent
from tests.reliability.fuzz.vitals import Vitals, growth, quiet_vitals, vitals
from tests.service.draft_watch import draft_pids, eventually, open_link
from tests.service.test_failures import Launched

_NUM_SLICES = 10  # of a campaign: memory is looked at after the first and after the last
_FLAGS = (
    "--topology", "1+1", "--speculation", "async", "--oversubscribe", "--http-port", "0",
    "--max-model-len", str(MAX_MODEL_LEN),
    # All of both has been used by the end of the first slice.
    "--kv-memory", "8MiB", "--stored-responses-memory", "256KiB",
)  # fmt: skip


@dataclass
class Verdict:
    """What a campaign did, and what became of the service."""

    sent: dict[str, Sent] = field(default_factory=dict)  # by port
    answers: Answers = field(default_factory=Answers)
    slices: list[Vitals] = field(default_factory=list)  # at the end of each
    last: Vitals | None = None
    seconds: float = 0.0

    @property
    def growth(self) -> dict[str, float]:
        """Of memory from the end of the first slice on, by process, as a fraction."""
        assert self.last
        return growth(self.slices[0], self.last)


class Attacked:
    """A running `1+1` and its ports."""

    def __init__(self, launched: Launched) -> None:
        self.launched = launched
        self.address = launched.address()
        assert eventually(lambda: "http://" in launched.output, 10)
        found = re.search(r"http://127\.0\.0\.1:(\d+)", launched.output)
        assert found
        self.http_port = int(found[1])
        self.folder = _run_folder(launched.process.pid)
        with Client(self.address) as client:
            assert eventually(lambda: client.spec_stats().num_drafts_attached == 1, 30)
        self.at_start = vitals(launched.process.pid)

    def listening(self) -> set[str]:
        """Names of all unix sockets that the launch listens on."""
        lines = Path("/proc/net/unix").read_text().splitlines()
        return {Path(line.split()[-1]).name for line in lines if f" {self.folder}/" in line}

    def control_port(self, name: str, seed: int) -> ControlFrames:
        """One of the run folder's sockets."""
        return ControlFrames(self.folder, name, seed)

    def ports(self, seed: int) -> list[Port]:
        """All of them."""
        (draft,) = draft_pids(self.launched.process.pid).values()
        rings = ("ring to_draft", "ring to_target")
        return [
            HttpFrames(self.http_port, seed),
            GrpcFrames(int(self.address.rpartition(":")[2]), seed),
            *(self.control_port(name, seed) for name in SEEDS),
            *(LinkFrames(open_link(draft), name, seed) for name in rings),
        ]

    def vitals(self) -> Vitals:
        """Once connections are closed."""
        return quiet_vitals(self.launched.process.pid, self.at_start.num_files)

    def is_idle(self) -> bool:
        """No request anywhere, and every block given back."""
        with Client(self.address) as client:
            load = client.load()
        num_given_back = load.num_free_blocks
        is_free = num_given_back == load.num_blocks
        return is_free and not (load.num_running or load.num_waiting or load.num_in_flight)


def attack(
    attacked: Attacked, num_frames: int, *, num_requests: int, num_before: int, seed: int
) -> Verdict:
    """`num_frames` to every port, all ports at once, in slices; requests run meanwhile.

    `num_before` others come first: until then processes touch memory that they keep.
    """
    requests = requests_of(num_requests, seed)
    plain = plainly(attacked.address, requests)
    run(attacked.address, requests_of(num_before, seed + 1), concurrency=8)
    attacked.at_start = vitals(attacked.launched.process.pid)
    verdict, ports = Verdict(), attacked.ports(seed)
    verdict.sent = {port.name: Sent() for port in ports}
    began_s = time.monotonic()
    try:
        for number in range(_NUM_SLICES):
            share = num_frames * (number + 1) // _NUM_SLICES - num_frames * number // _NUM_SLICES
            with Bystander(attacked.address, attacked.http_port, requests, plain) as bystander:
                _send_to_all(ports, share, verdict)
            for name, count in vars(bystander.answers).items():
                setattr(verdict.answers, name, getattr(verdict.answers, name) + count)
            verdict.slices.append(vitals(attacked.launched.process.pid))
    finally:
        for port in ports:
            port.close()
    verdict.last = attacked.vitals()
    verdict.seconds = time.monotonic() - began_s
    return verdict


def _send_to_all(ports: list[Port], count: int, verdict: Verdict) -> None:
    troubles: list[Exception] = []

    def send(port: Port) -> None:
        try:
            verdict.sent[port.name].add(port.send(count))
        except Exception as error:  # noqa: BLE001 - raised anew where all have ended
            troubles.append(error)

    threads = [threading.Thread(target=send, args=(port,), daemon=True) for port in ports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if troubles:
        raise troubles[0]


@contextmanager
def attacked_service() -> Iterator[Attacked]:
    """A launch that is told to stop in the end, and has to end well."""
    launched = Launched(*_FLAGS)
    try:
        yield Attacked(launched)
    except BaseException:
        sys.stderr.write(launched.output[-20_000:])
        raise
    finally:
        if launched.process.poll() is None:
            launched.process.send_signal(signal.SIGTERM)
        code = launched.exit_code(90)
        assert launched.process.stdout
        launched.process.stdout.close()
    assert code == 0, launched.output[-5000:]


def _run_folder(launcher_pid: int) -> Path:
    """Where its sockets are: some process holds its lock open."""
    for pid in vitals(launcher_pid).names:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            if entry.exists() and (lock := entry.resolve()).name == "lock":
                return lock.parent
    raise FileNotFoundError(f"launcher {launcher_pid} has no run folder")
