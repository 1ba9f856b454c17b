"""The training loop: batches in, checkpoints and progress out.

Trains any `Trainable`. Knows nothing about where the text comes from or what the weights are for. A
run whose numbers are no numbers any more ends before it stores or exports any of them.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from draft_node.training import checkpoint
from draft_node.training.batches import BatchSource
from draft_node.training.checkpoint import Progress
from draft_node.training.device import compiled_loss, fast_bfloat16
from draft_node.training.optimizer import Optimizer, OptimizerConfig
from draft_node.training.ranks import Ranks
from draft_node.training.schedule import ActiveClock, Schedule
from draft_node.training.trainable import Trainable
from specserve.drafters.weights import is_finite
from specserve.errors import Failed


def refuse_numbers(what: str, numbers: Iterable[float], step: int) -> None:
    """Raise Failed naming what is not finite, and after which step, unless all numbers are."""
    for number in numbers:
        if not math.isfinite(number):
            raise _diverged(f"{what} is {number}", step)


def refuse_tensors(tensors: Mapping[str, Tensor], step: int) -> None:
    """Raise Failed naming the first tensor that holds NaN or infinity, and after which step."""
    for name, tensor in tensors.items():
        if not is_finite(tensor):
            raise _diverged(f"{name} holds NaN or infinity", step)


def _diverged(problem: str, step: int) -> Failed:
    way_out = "nothing is exported; --restart with a lower --rate begins anew"
    return Failed(f"training diverged, at step {step} {problem}; {way_out}")


log = logging.getLogger(__name__)

LONG_EVERY = 6  # before the decay, one step in so many uses long rows
LONG_FROM = 0.4  # ... from this share of the run on


@dataclass(frozen=True)
class TrainerConfig:
    """How to train; what to train is the model's business.

    Rows are short at first, because attention is the dearest part of a CPU step, and longer later,
    so that contexts up to the longest length work.
    """

    tokens_per_step: int = 8192
    micro_tokens: int = 8192
    length: int = 256
    long_lengths: tuple[int, ...] = (512, 1024, 2048)
    max_grad_norm: float = 1.0
    device: str = "cpu"
    bfloat16: bool | None = None  # None: where the device multiplies it natively
    compile: bool = True
    checkpoint_every_s: float = 180.0
    evaluate_every_s: float = 300.0
    evaluate_tokens: int = 16384
    log_every_s: float = 15.0
    seed: int = 0
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    ranks: Ranks = field(default_factory=Ranks)  # the processes that train together


class Trainer:
    """One run; resumes from the checkpoint in `folder` when there is one.

    Without one it starts from the weights `initial`, or else from random ones.
    """

    def __init__(
        self,
        model: Trainable,
        batches: BatchSource,
        held_out: dict[str, np.ndarray],
        folder: Path,
        config: TrainerConfig,
        clock: Callable[[], float] = time.perf_counter,
        initial: dict[str, Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.ranks = config.ranks
        self.model, self.batches, self.held_out = model.to(config.device), batches, held_out
        self.path, self.config, self._clock = folder / checkpoint.FILE_NAME, config, clock
        wanted = config.bfloat16
        self._bfloat16 = fast_bfloat16(config.device) if wanted is None else wanted
        self.optimizer = Optimizer(self.model, config.optimizer)
        self.progress = Progress()
        self.stop = False  # set by signal handlers; honoured after the current step
        if self.path.exists():
            self._resume()
        elif initial is not None:
            self.model.load_state_dict(initial)
        else:
            self.model.initialise(config.seed)
        self.ranks.take_over(self.model.state_dict().values())
        self._active = ActiveClock(self.progress.active_s, self.progress.recent_step_s)
        self._loss = compiled_loss(self.model) if config.compile else self.model.loss

    def _resume(self) -> None:
        model, optimizer, self.progress = checkpoint.load(self.path)
        try:
            checkpoint.refuse_other_tensors(model, self.model.state_dict())
            self.optimizer.load_state_tensors(optimizer)
            self.batches.resume_at(self.progress.cursors, self.progress.tokens)
        except ValueError as error:
            raise checkpoint.unusable(self.path, error) from error
        self.model.load_state_dict(model)
        log.info("resuming at step %d, %.1f active minutes, %.1f M tokens", self.progress.step,
                 self.progress.active_s / 60, self.progress.tokens / 1e6)  # fmt: skip

    def save(self) -> None:
        """Write the checkpoint; raises Failed, and keeps the one before, if it is not finite."""
        self.progress.active_s = self._active.active_s
        self.progress.recent_step_s = self._active.recent
        self.progress.cursors = dict(self.batches.cursors)
        model, optimizer = self.model.state_dict(), self.optimizer.state_tensors()
        refuse_tensors(model, self.progress.step)
        refuse_tensors(optimizer, self.progress.step)
        checkpoint.save(self.path, model, optimizer, self.progress)

    def _length(self, schedule: Schedule) -> int:
        """Row length of the next step: mostly short; long rows late, half of them in the decay."""
        step, longest = self.progress.step, self.batches.longest
        long = [length for length in self.config.long_lengths if length <= longest]
        elapsed = self.elapsed(schedule)
        decaying = schedule.decay_progress(elapsed) > 0
        late = elapsed >= LONG_FROM * schedule.total
        every = 2 if decaying else LONG_EVERY
        if long and late and step % every == 0:
            return long[step // every % len(long)]
        return min(self.config.length, longest)

    def _micro_batches(self, length: int) -> Iterator[tuple[Tensor, Tensor]]:
        least = max(len(self.batches.streams), self.ranks.count)
        rows = max(least, self.config.tokens_per_step // length)
        rows -= rows % self.ranks.count  # a step is the same work for all
        mine = self.ranks.part(rows)
        ids, labels = (rows_of_all[mine] for rows_of_all in self.batches.next(rows, length))
        size = max(1, self.config.micro_tokens // length)
        for first in range(0, len(ids), size):
            yield ids[first : first + size], labels[first : first + size]

    def _step(self, schedule: Schedule) -> Tensor:
        """One update; returns the mean loss of the batch, still on the device."""
        # What the model draws is a function of the step: a resumed run draws the same.
        torch.manual_seed(self.ranks.seed((self.config.seed << 32) + self.progress.step))
        micro = list(self._micro_batches(self._length(schedule)))
        total = torch.zeros((), device=self.config.device)
        for ids, labels in micro:
            with self.autocast():
                loss = self._loss(ids.to(self.config.device), labels.to(self.config.device))
            (loss / len(micro)).backward()
            total += loss.detach() / len(micro)
            self.progress.tokens += ids.numel() * self.ranks.count
        self.ranks.average(self.optimizer.parameters, total)
        torch.nn.utils.clip_grad_norm_(self.optimizer.parameters, self.config.max_grad_norm)
        self.optimizer.step(schedule.scale(self.elapsed(schedule)))
        self.progress.step += 1
        return total

    def autocast(self) -> "torch.autocast | nullcontext[None]":
        """The arithmetic of losses and evaluations."""
        if not self._bfloat16:
            return nullcontext()
        return torch.autocast(self.config.device.split(":")[0], dtype=torch.bfloat16)

    def evaluate(self) -> dict[str, float]:
        """The model's figures over the first evaluate_tokens tokens of each held-out stream.

        Raises Failed if one of them is not finite.
        """
        limit = self.config.evaluate_tokens
        streams = {domain: stream[:limit] for domain, stream in self.held_out.items()}
        with self.autocast():
            figures = self.model.evaluate(streams)
        for name, figure in figures.items():
            refuse_numbers(f"the held-out figure {name}", [figure], self.progress.step)
        self.progress.history.append(
            {"active_s": self._active.active_s, "tokens": self.progress.tokens, **figures}
        )
        return figures

    def run(self, schedule: Schedule, report: "Callable[[Trainer, float, float], None]") -> bool:
        """Train until the schedule ends (True) or `stop` is set (False).

        `report(trainer, loss, tokens_per_s)` is called every log_every_s seconds. Raises Failed
        once the loss, a weight or a held-out figure is not finite; what was saved before stays.
        """
        due = _Due(self._active.active_s)
        window_loss, window_steps, window_tokens, window_s = 0.0, 0, self.progress.tokens, 0.0
        while not self._is_over(schedule):
            before = self._clock()
            loss = self._step(schedule).item()
            refuse_numbers("the loss", [loss], self.progress.step)
            window_loss += loss
            window_steps += 1
            window_s += self._active.add(self._clock() - before)
            now = self._active.active_s
            if not self.ranks.is_first:
                continue
            if due("log", now, self.config.log_every_s):
                speed = (self.progress.tokens - window_tokens) / max(1e-9, window_s)
                report(self, window_loss / window_steps, speed)
                window_loss, window_steps, window_s = 0.0, 0, 0.0
                window_tokens = self.progress.tokens
            if due("evaluate", now, self.config.evaluate_every_s):
                log.info("held out: %s", _format(self.evaluate()))
            if due("checkpoint", now, self.config.checkpoint_every_s):
                self.save()
        if self.ranks.is_first:
            log.info("held out: %s", _format(self.evaluate()))
            self.save()
        return not self.stop

    def _is_over(self, schedule: Schedule) -> bool:
        """The same answer in every process: rates go by the first one's clock."""
        self.stop, self._active.active_s = self.ranks.agree(self.stop, self._active.active_s)
        return self.stop or schedule.finished(self.elapsed(schedule))

    @property
    def epochs(self) -> dict[str, float]:
        """How often every stream has been read."""
        return {domain: self.batches.epochs(domain) for domain in self.batches.streams}

    @property
    def active_s(self) -> float:
        """Active seconds so far."""
        return self._active.active_s

    def elapsed(self, schedule: Schedule) -> float:
        """How much of `schedule` is over, in its unit."""
        return schedule.elapsed(self._active.active_s, self.progress.step)


class _Due:
    """Whether an interval of active seconds has passed since the last time."""

    def __init__(self, start_s: float) -> None:
        self._start_s, self._last = start_s, dict[str, float]()

    def __call__(self, name: str, now_s: float, every_s: float) -> bool:
        if now_s - self._last.get(name, self._start_s) < every_s:
            return False
        self._last[name] = now_s
        return True


def _format(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in figures.items())


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Run with `count` CPU threads."""
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)
