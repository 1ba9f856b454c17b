"""One command: data, tokenizer and weights of the embedded default target.

    python -m draft_node.training.embedded --minutes 110 --decay-minutes 27

Resumes by itself when the work folder holds a checkpoint; --minutes may differ from the first run.
"""

import argparse
import logging
import os
import platform
import signal
import sys
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors.torch import load_file

from draft_node.training import checkpoint, dataset, export, memory, prompts, report
from draft_node.training.batches import BatchSource
from draft_node.training.decoder import Decoder, DecoderConfig
from draft_node.training.schedule import Schedule
from draft_node.training.trainer import Trainer, TrainerConfig, num_threads

log = logging.getLogger("embedded")

DEFAULT_WORK = Path.home() / ".cache" / "specserve" / "embedded"
DEFAULT_OUT = Path("specserve/assets/target")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=110.0, help="active training minutes")
    parser.add_argument("--decay-minutes", type=float, default=27.0)
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tokens-per-step", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--init", type=Path, help="model folder whose weights and tokenizer to start from"
    )
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--export-only", action="store_true", help="export the newest checkpoint")
    parser.add_argument("--no-report", action="store_true", help="export without evaluating")
    return parser.parse_args()


class _Display:
    """Progress bar on a terminal, plain log lines elsewhere."""

    def __init__(self, schedule: Schedule, console: Console) -> None:
        self._schedule = schedule
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
            TimeRemainingColumn(), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("training", total=schedule.total_s)
        self._plain = not console.is_terminal

    def __enter__(self) -> "_Display":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def __call__(self, trainer: Trainer, loss: float, tokens_per_s: float) -> None:
        """Report the state of a run."""
        active_s, progress = trainer.active_s, trainer.progress
        text = f"step {progress.step} loss {loss:.3f} {tokens_per_s:,.0f} tok/s"
        self._bar.update(self._task, completed=active_s, description=text)
        if self._plain:
            left = max(0.0, self._schedule.total_s - active_s) / 60
            log.info("%s %.1f Mtok lr %.2f active %.1f min, %.1f to go", text,
                     progress.tokens / 1e6, self._schedule.scale(active_s), active_s / 60,
                     left)  # fmt: skip


def train(arguments: argparse.Namespace, console: Console) -> bool:
    """Train or resume; True when the schedule ended."""
    batches = BatchSource(dataset.streams(arguments.work, "train"), arguments.seed)
    config = TrainerConfig(
        tokens_per_step=arguments.tokens_per_step,
        device=arguments.device,
        compile=not arguments.no_compile,
        seed=arguments.seed,
    )
    held_out = dataset.streams(arguments.work, "held-out")
    initial = load_file(arguments.init / "model.safetensors") if arguments.init else None
    if initial is not None:
        initial = {name: tensor.float() for name, tensor in initial.items()}
    trainer = Trainer(
        Decoder(DecoderConfig()), batches, held_out, arguments.work, config, initial=initial
    )

    def stop(number: int, frame: FrameType | None) -> None:
        log.info("signal %d: saving after this step", number)
        trainer.stop = True

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, stop)
    schedule = Schedule(arguments.minutes * 60, arguments.decay_minutes * 60)
    with _Display(schedule, console) as display:
        return trainer.run(schedule, display)


def export_newest(arguments: argparse.Namespace) -> None:
    """Export the newest checkpoint, the prompts and, unless told not to, the report."""
    work, out = arguments.work, arguments.out
    weights, _, progress = checkpoint.load(work / checkpoint.FILE_NAME)
    export.write_model(weights, DecoderConfig(), work / "tokenizer", out)
    prompt_folder = out.parent / "prompts"
    prompts.write(dataset.held_out_documents(work), prompt_folder, platform.python_version())
    export.write_checksums(out)  # now, as the report takes minutes, and again with the report
    if not arguments.no_report:
        log.info("evaluating the exported weights")
        command = (
            f"python -m draft_node.training.embedded --minutes {progress.active_s / 60:.0f} "
            f"--decay-minutes {arguments.decay_minutes:.0f}"
        )
        report.write(out, work, prompt_folder, progress, command)
    export.write_checksums(out)
    log.info("exported step %d to %s", progress.step, out)


def main() -> int:
    """Run the command."""
    arguments = _arguments()
    console = Console(stderr=True)
    handler = RichHandler(console=console) if console.is_terminal else logging.StreamHandler()
    logging.basicConfig(
        level=logging.INFO, handlers=[handler],
        format="%(message)s" if console.is_terminal else "%(asctime)s %(message)s",
    )  # fmt: skip
    memory.keep_freed_memory()
    with num_threads(arguments.threads):
        finished = True
        if not arguments.export_only:
            dataset.prepare(arguments.work, arguments.init)
            finished = train(arguments, console)
        if finished:
            export_newest(arguments)
    return 0 if finished else 1


if __name__ == "__main__":
    sys.exit(main())
