"""A target that decodes nothing: a thread behind a real control socket that recites a script."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from specserve.transport.control.control import TargetControl
from specserve.types import (
    Abort,
    Drain,
    Drained,
    FinishReason,
    Load,
    Logprobs,
    Profile,
    Profiled,
    PromptLogprobs,
    Ready,
    Request,
    RequestEnd,
    RequestStats,
    RoundEvents,
    SampleDelta,
    StopSample,
    Submit,
    Terminal,
    TokenOrigin,
    ToTarget,
)

STATS = RequestStats(num_prompt_tokens=3, num_cached_tokens=1, prefill_s=0.5)

Script = Callable[[Request, int], Sequence[int]]


def ready(vocab_size: int, max_model_len: int = 512, eos_token_id: int = 0) -> Ready:
    return Ready(
        model="scripted", model_type="qwen3", vocab_size=vocab_size, max_model_len=max_model_len,
        num_layers=1, num_params=1, ballast_params=0, dtype="float32", half_weights=False,
        kv_dtype="bfloat16", device="cpu", tensor_parallel=1, oversubscribed=False,
        deterministic=True, cuda_graphs=False, backend="torch", block_size=16,
        num_blocks=8, max_batch_rows=64,
        max_batch_tokens=512, eos_token_ids=(eos_token_id,),
    )  # fmt: skip


class _Row:
    def __init__(
        self, request: Request, index: int, token_ids: Sequence[int], eos_token_id: int
    ) -> None:
        self.request, self.index = request, index
        self.ends = {*request.sampling.stop_token_ids}
        if not request.sampling.ignore_eos:
            self.ends.add(eos_token_id)
        stops = [place for place, token_id in enumerate(token_ids, 1) if token_id in self.ends]
        self.left = list(token_ids[: stops[0]] if stops else token_ids)
        self.done = False


class ScriptedTarget:
    """`script` gives the tokens of a sample; `per_round` of them leave every `round_s`."""

    def __init__(self, control_dir: Path, announcement: Ready, script: Script) -> None:
        self.script, self.per_round, self.round_s = script, 1, 0.001
        self.origins: tuple[TokenOrigin, ...] = ()  # of a round's first tokens; others are plain
        self.cache_hit: bool | None = None
        self.verify_len = 0  # drafted tokens of a round, as it tells them
        self.announcement = announcement
        self.load = Load()  # what the next reports say of everything but rounds and rows
        self.stats = STATS  # ... and what requests are said to have had
        self.messages: list[tuple[float, ToTarget]] = []
        self.num_dropped = 0
        self.is_idle = False  # a profile of it waits for rounds
        self._rows: dict[str, list[_Row]] = {}
        self._num_emitted: dict[str, int] = defaultdict(int)
        self._control_dir = control_dir
        self._stop = threading.Event()
        self._frozen = threading.Event()
        self.lose_a_frame = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scripted target")
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def freeze(self) -> None:
        """Alive, connected and silent, like a process in a collective that never ends."""
        self._frozen.set()

    @property
    def num_live(self) -> int:
        return len(self._rows)

    def received(self, kind: type) -> list[ToTarget]:
        return [message for _, message in list(self.messages) if isinstance(message, kind)]

    def _run(self) -> None:
        control = TargetControl(self._control_dir)
        control.announce(self.announcement)
        round_id, load_due_s = 0, 0.0
        while not self._stop.is_set():
            if self._frozen.is_set():
                self._stop.wait()
            control.wait(self.round_s if self._rows else 0.01)
            for message in control.receive():
                self.messages.append((time.monotonic(), message))
                self._take(control, message)
            round_id += 1
            if self.lose_a_frame.is_set():
                self.lose_a_frame.clear()
                control._writer.seal(Load())
            self._round(control, round_id)
            if time.monotonic() >= load_due_s:
                counts = {"num_rounds": round_id, "num_running": len(self._rows)}
                control.send(msgspec.structs.replace(self.load, **counts))
                load_due_s = time.monotonic() + 0.1
            if self._rows:
                time.sleep(self.round_s)
        self.num_dropped = control.num_dropped
        control.close()

    def _take(self, control: TargetControl, message: ToTarget) -> None:
        match message:
            case Submit(request):
                most, (eos_token_id,) = request.sampling.max_tokens, self.announcement.eos_token_ids
                self._rows[request.request_id] = [
                    _Row(request, index, self.script(request, index)[:most], eos_token_id)
                    for index in range(request.sampling.n)
                ]
                if request.sampling.prompt_logprobs is not None:
                    positions = [_logprobs(token) for token in request.prompt_token_ids[1:]]
                    control.send(PromptLogprobs(request.request_id, positions))
            case Abort(request_id):
                if self._rows.pop(request_id, None) is not None:
                    self._end(control, request_id, Terminal.CANCELLED)
            case StopSample(request_id, index):
                if request_id in self._rows:
                    self._rows[request_id][index].done = True
            case Drain():
                control.send(Drained())
            case Profile(num_rounds, path) if num_rounds and not self.is_idle:
                control.send(Profiled(path))

    def _round(self, control: TargetControl, round_id: int) -> None:
        deltas = [
            self._advance(row) for rows in self._rows.values() for row in rows if not row.done
        ]
        if deltas:
            control.send(RoundEvents(round_id, deltas))
        for request_id, rows in list(self._rows.items()):
            if all(row.done for row in rows):
                del self._rows[request_id]
                self._end(control, request_id, Terminal.FINISHED)

    def _advance(self, row: _Row) -> SampleDelta:
        token_ids, row.left = row.left[: self.per_round], row.left[self.per_round :]
        row.done = not row.left
        stopped = row.done and token_ids[-1] in row.ends
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        wants_logprobs = row.request.sampling.logprobs is not None
        return SampleDelta(
            row.request.request_id,
            row.index,
            token_ids,
            [*self.origins, *[TokenOrigin.PLAIN] * len(token_ids)][: len(token_ids)],
            logprobs=[_logprobs(token) for token in token_ids] if wants_logprobs else None,
            finish_reason=reason if row.done else None,
            stop_token_id=token_ids[-1] if stopped else None,
            cache_hit=self.cache_hit,
            verify_len=self.verify_len,
        )

    def _end(self, control: TargetControl, request_id: str, terminal: Terminal) -> None:
        control.send(RequestEnd(request_id, terminal, self.stats))


def _logprobs(token_id: int) -> Logprobs:
    return Logprobs(token_id, -0.5, 1, [token_id, token_id + 1], [-0.5, -1.5])
