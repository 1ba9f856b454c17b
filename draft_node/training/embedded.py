"""One command: data, tokenizer and weights of a model like the embedded target.

    python -m draft_node.training.embedded --minutes 110 --decay-minutes 27 --out my-target

Resumes by itself when the work folder holds a checkpoint; --minutes may differ from the first run.
Evaluation prompts go beside --out, into a folder of its name and "-prompts". Drafters of a target
that is replaced have to be trained anew.
"""

import argparse
import logging
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from safetensors.torch import load_file
from tokenizers import Tokenizer

from draft_node.training import (
    checkpoint,
    dataset,
    export,
    prompts,
    report,
    run_settings,
)
from draft_node.training.batches import BatchSource
from draft_node.training.decoder import Decoder, DecoderConfig
from draft_node.training.optimizer import ADAM_LR, MUON_LR, OptimizerConfig
from draft_node.training.options import positive_float, positive_int, whole_number
from draft_node.training.run_folder import is_begun, locked
from draft_node.training.running import run_until_stopped, start_logging
from draft_node.training.schedule import Schedule
from draft_node.training.trainer import Trainer, TrainerConfig, num_threads
from specserve.errors import Failed, InvalidField, SpecserveError
from specserve.processes.process import keep_freed_memory
from specserve.processes.run_dir import make_output_folder
from specserve.processes.standard_streams import complain

log = logging.getLogger("embedded")

DEFAULT_WORK = Path.home() / ".cache" / "specserve" / "embedded"
TOKENS_PER_STEP = 8192
_MOST_SEED = 2**32 - 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m draft_node.training.embedded", description=__doc__
    )
    minutes = {"type": positive_float, "metavar": "M"}
    parser.add_argument("--minutes", default=110.0, help="active training minutes", **minutes)
    parser.add_argument("--decay-minutes", default=27.0, help="of them at the end", **minutes)
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    parser.add_argument("--out", type=Path, required=True, help="folder of the model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=positive_int, default=os.cpu_count() or 1)
    parser.add_argument("--tokens-per-step", type=positive_int, default=TOKENS_PER_STEP)
    parser.add_argument("--seed", type=whole_number(0, _MOST_SEED), default=0)
    parser.add_argument(
        "--rate", type=positive_float, default=1.0, help="times the usual learning rates"
    )
    parser.add_argument(
        "--init", type=Path, help="model folder whose weights and tokenizer to start from"
    )
    parser.add_argument(
        "--restart", action="store_true", help="forget the checkpoint instead of resuming from it"
    )
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--export-only", action="store_true", help="export the newest checkpoint")
    parser.add_argument("--no-report", action="store_true", help="export without evaluating")
    return parser.parse_args(argv)


def train(arguments: argparse.Namespace, console: Console) -> bool:
    """Train or resume; True when the schedule ended."""
    batches = BatchSource(dataset.streams(arguments.work, "train"), arguments.seed)
    config = TrainerConfig(
        tokens_per_step=arguments.tokens_per_step,
        device=arguments.device,
        compile=not arguments.no_compile,
        seed=arguments.seed,
        optimizer=OptimizerConfig(
            muon_lr=MUON_LR * arguments.rate, adam_lr=ADAM_LR * arguments.rate
        ),
    )
    held_out = dataset.streams(arguments.work, "held-out")
    initial = load_file(arguments.init / "model.safetensors") if arguments.init else None
    if initial is not None:
        initial = {name: tensor.float() for name, tensor in initial.items()}
    trainer = Trainer(
        Decoder(DecoderConfig()), batches, held_out, arguments.work, config, initial=initial
    )

    schedule = Schedule(arguments.minutes * 60, arguments.decay_minutes * 60)
    return run_until_stopped(trainer, schedule, console)


def export_newest(arguments: argparse.Namespace) -> None:
    """Export the newest checkpoint, the prompts and, unless told not to, the report."""
    work, out = arguments.work, arguments.out
    weights, _, progress = checkpoint.load(work / checkpoint.FILE_NAME)
    export.write_model(weights, DecoderConfig(), work / "tokenizer", out)
    prompt_folder = out.with_name(f"{out.name}-prompts")
    prompts.write(dataset.held_out_documents(work), prompt_folder, platform.python_version())
    export.write_checksums(out)  # now, as the report takes minutes, and again with the report
    if not arguments.no_report:
        log.info("evaluating the exported weights")
        report.write(out, work, prompt_folder, progress, _command(arguments, progress.active_s))
    export.write_checksums(out)
    log.info("exported step %d to %s", progress.step, out)


def _command(arguments: argparse.Namespace, active_s: float) -> str:
    """What gives this run, with all flags that say what it is."""
    words = ["python -m draft_node.training.embedded", f"--minutes {active_s / 60:.0f}"]
    words.append(f"--decay-minutes {arguments.decay_minutes:.0f}")
    for name, usual in (("seed", 0), ("rate", 1.0), ("tokens_per_step", TOKENS_PER_STEP)):
        if (value := getattr(arguments, name)) != usual:
            words.append(f"--{name.replace('_', '-')} {value:g}")
    if arguments.init is not None:
        words.append(f"--init {arguments.init.name}")
    return " ".join([*words, f"--out {arguments.out.name}"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0: the model is exported, 1: it ended before that, 2: it cannot begin."""
    arguments = _arguments(argv)
    console = start_logging()
    keep_freed_memory()
    try:
        make_output_folder(arguments.work, "--work")
        with locked(arguments.work, "--work", arguments.work), num_threads(arguments.threads):
            return 0 if _run(arguments, console) else 1
    except SpecserveError as error:
        complain(str(error))
        return 1 if isinstance(error, Failed) else 2


def _run(arguments: argparse.Namespace, console: Console) -> bool:
    """Whether the model was exported."""
    make_output_folder(arguments.out, "--out")  # hours later is a bad time to find out
    finished = True
    if not arguments.export_only:
        _begin(arguments)
        with dataset.preparing(arguments.work):
            dataset.prepare(arguments.work, arguments.init)
            _refuse_other_tokenizer(arguments)
        finished = train(arguments, console)
    if finished:
        export_newest(arguments)
    return finished


def _begin(arguments: argparse.Namespace) -> None:
    """Refuse --init that is no model, and a run that was begun with other settings than these."""
    work, init = arguments.work, arguments.init
    for name in ("model.safetensors", "tokenizer.json") if init else ():
        if not (init / name).is_file():
            raise InvalidField("--init", f"{init}: {name} is missing")
    settings = {name: getattr(arguments, name) for name in ("seed", "rate", "tokens_per_step")}
    settings["init"] = run_settings.digest_of_initial(arguments)
    if arguments.restart:
        (work / checkpoint.FILE_NAME).unlink(missing_ok=True)
    if is_begun(work):
        run_settings.refuse_changes(work, settings, arguments.out)
    run_settings.store(work, settings)


def _refuse_other_tokenizer(arguments: argparse.Namespace) -> None:
    """Raise InvalidField unless the text in --work is in the vocabulary of --init."""
    if arguments.init is None:
        return
    own = Tokenizer.from_file(str(arguments.init / "tokenizer.json"))
    if own.to_str() != dataset.load_tokenizer(arguments.work).to_str():
        problem = f"the text there was made with another tokenizer than that of {arguments.init}"
        raise InvalidField("--work", f"{arguments.work}: {problem}")


if __name__ == "__main__":
    sys.exit(main())
