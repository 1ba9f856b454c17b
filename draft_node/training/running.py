"""What every training command does around its trainer: logging, progress bar, stopping on signals.

A first SIGINT or SIGTERM lets the current step end and saves; a second SIGINT interrupts.
"""

import logging
import signal
from types import FrameType

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from draft_node.training.schedule import Schedule
from draft_node.training.trainer import Trainer
from specserve.errors import InvalidField

log = logging.getLogger(__name__)


def start_logging() -> Console:
    """Log to stderr, in colour where that is a terminal."""
    console = Console(stderr=True)
    handler = RichHandler(console=console) if console.is_terminal else logging.StreamHandler()
    logging.basicConfig(
        level=logging.INFO, handlers=[handler],
        format="%(message)s" if console.is_terminal else "%(asctime)s %(message)s",
    )  # fmt: skip
    return console


def run_until_stopped(trainer: Trainer, schedule: Schedule, console: Console) -> bool:
    """Train; True when the schedule ended, False when a signal did.

    Raises InvalidField for a run that has already taken more steps than it should.
    """
    if schedule.in_steps and trainer.progress.step > schedule.total:
        problem = f"the run has taken {trainer.progress.step}; --restart forgets it"
        raise InvalidField("--steps", f"{schedule.total:.0f}: {problem}")

    def stop(number: int, frame: FrameType | None) -> None:
        log.info("signal %d: saving after this step", number)
        trainer.stop = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = {name: signal.signal(name, stop) for name in (signal.SIGTERM, signal.SIGINT)}
    try:
        with Display(schedule, console) as display:
            return trainer.run(schedule, display)
    finally:
        for name, handler in previous.items():
            signal.signal(name, handler)


class Display:
    """Progress bar on a terminal, plain log lines elsewhere."""

    def __init__(self, schedule: Schedule, console: Console) -> None:
        self._schedule = schedule
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
            TimeRemainingColumn(), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("training", total=schedule.total)
        self._plain = not console.is_terminal

    def __enter__(self) -> "Display":
        self._bar.start()
        if self._plain:
            log.info("training")  # a line of figures comes a while later
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def __call__(self, trainer: Trainer, loss: float, tokens_per_s: float) -> None:
        """Report the state of a run."""
        elapsed, progress = trainer.elapsed(self._schedule), trainer.progress
        text = f"step {progress.step} loss {loss:.3f} {tokens_per_s:,.0f} tok/s"
        self._bar.update(self._task, completed=elapsed, description=text)
        if self._plain:
            left = max(0.0, self._schedule.total - elapsed)
            to_go = f"{left:.0f} steps" if self._schedule.in_steps else f"{left / 60:.1f} min"
            epochs = ", ".join(f"{name} {count:.2f}" for name, count in trainer.epochs.items())
            log.info("%s %.1f Mtok epochs (%s) lr %.2f active %.1f min, %s to go", text,
                     progress.tokens / 1e6, epochs, self._schedule.scale(elapsed),
                     trainer.active_s / 60, to_go)  # fmt: skip
