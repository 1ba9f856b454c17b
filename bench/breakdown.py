"""Where a decode round spends its time: the real node loop in one process, a timer on each stage.

Real scheduler, runner, sampler and control sockets; only the other end of the sockets is a stub
that submits the requests and throws away what comes back. A timer costs well under a microsecond.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from bench.in_process import build_node
from bench.records import RoundJob, RoundTimes, Setup
from specserve.transport.control.control import FrameWriter, TargetControl
from specserve.types import Request, SamplingParams, Submit, ToTarget
from target_node.batch import ForwardBatch
from target_node.node import TargetNode
from target_node.runner import Runner

STAGES = (
    "receive", "schedule", "lay out", "plan", "model", "head", "sample", "commit", "send", "other",
)  # fmt: skip
_MAX_BATCH_ROWS = 64


class StageTimer:
    """Wraps functions so that the time spent in them counts for a stage of the current turn."""

    def __init__(self) -> None:
        self.turn: dict[str, float] = defaultdict(float)

    def wrap(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            start_s = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.turn[stage] += time.perf_counter() - start_s

        return timed


class ApiStub:
    """The other end of the control sockets."""

    def __init__(self, control_dir: Path) -> None:
        self._context = zmq.Context()
        self._pull = self._context.socket(zmq.PULL)
        self._pull.bind(f"ipc://{control_dir}/from_target")
        self._push = self._context.socket(zmq.PUSH)
        self._push.connect(f"ipc://{control_dir}/to_target")
        self._writer = FrameWriter()

    def send(self, message: ToTarget) -> None:
        self._push.send(self._writer.seal(message))

    def discard(self) -> None:
        """Read what has come."""
        while self._pull.poll(0):
            self._pull.recv()

    def close(self) -> None:
        self._context.destroy(linger=0)


def measure_rounds(runner: Runner, job: RoundJob, setup: Setup) -> RoundTimes:
    """Run the job through a node over `runner`; medians over the rounds in which all rows decode.

    The functions it wraps are put back, so that `runner` is as before.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        stub, control = ApiStub(Path(folder)), TargetControl(Path(folder))
        node = build_node(
            control,
            runner,
            max_batch_rows=_MAX_BATCH_ROWS,
            max_batch_tokens=setup.max_batch_tokens,
            prefix_cache=True,
        )
        try:
            return _measure(node, stub, job)
        finally:
            control.close()
            stub.close()


def _instrument(node: TargetNode, timer: StageTimer) -> Callable[[], None]:
    """Put a timer around every stage; returns what takes them off again."""
    places: list[tuple[Any, str, str]] = [
        (node.control, "receive", "receive"),
        (node.scheduler, "next_batch", "schedule"),
        (ForwardBatch, "of", "lay out"),
        (node.runner.passes, "plan", "plan"),
        (node.runner.passes, "run", "model"),
        (node.runner.model, "logits", "head"),
        (node.sampler, "sample", "sample"),
        (node.scheduler, "commit", "commit"),
        (node.control, "send", "send"),
    ]
    originals = [(owner, name, vars(owner).get(name)) for owner, name, _ in places]
    for owner, name, stage in places:
        setattr(owner, name, timer.wrap(stage, getattr(owner, name)))

    def restore() -> None:
        for owner, name, original in originals:
            if original is None:
                delattr(owner, name)  # it was the class's method
            else:
                setattr(owner, name, original)

    return restore


def _measure(node: TargetNode, stub: ApiStub, job: RoundJob) -> RoundTimes:
    timer = StageTimer()
    restore = _instrument(node, timer)
    turns: list[dict[str, float]] = []
    try:
        for request in _requests(job):
            stub.send(Submit(request))
        node.control.wait(1.0)
        served = False
        while node.num_requests or not served:
            timer.turn = defaultdict(float)
            # Whether all rows will decode in this turn: nobody waits and nobody prefills.
            full = len(node.scheduler.running) == len(job.prompt_lens) and all(
                sequence.is_decoding for sequence in node.scheduler.running
            )
            start_s = time.perf_counter()
            node.turn()
            round_s = time.perf_counter() - start_s
            served = served or node.num_requests > 0
            if full:
                timer.turn["other"] = round_s - sum(timer.turn.values())
                turns.append(timer.turn | {"round": round_s})
            stub.discard()
    finally:
        restore()
    return RoundTimes(
        stages_s={stage: float(np.median([turn.get(stage, 0.0) for turn in turns]))
                  for stage in STAGES},
        round_s=float(np.median([turn["round"] for turn in turns])),
        num_rounds=len(turns),
    )  # fmt: skip


def _requests(job: RoundJob) -> list[Request]:
    sampling = SamplingParams(
        temperature=job.temperature, max_tokens=job.num_tokens, ignore_eos=True
    )
    return [
        Request(
            request_id=f"row-{row}",
            prompt_token_ids=[(7 * row + i) % 1000 for i in range(length)],
            sampling=sampling,
            seed=row,
            cache_salt=f"row-{row}-{time.monotonic_ns()}",
        )
        for row, length in enumerate(job.prompt_lens)
    ]
