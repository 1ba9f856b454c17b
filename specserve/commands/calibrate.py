# pyright: strict
"""`specserve calibrate`: decide what is calibrated on what, and start the process that does it.

Imports neither torch nor the draft node, which is started by its module's name with a `Job`.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec

import specserve
from specserve.errors import InvalidField
from specserve.processes.run_dir import make_output_folder
from specserve.settings.config import NUM_KEPT, SpeculationConfig
from specserve.settings.drafter_source import NGRAM, locate_drafter, shipped_drafters
from specserve.settings.target_source import TINY, locate_target

HELP = "calibrate a drafter's confidences on held-out prompts, and measure how fast it is here"
EXAMPLES = """examples:
  specserve calibrate                                       the tiny target and its drafter
  specserve calibrate --drafter ./dflash --local-head ./dels    a DFlash with a local head
  specserve calibrate --target ./Qwen3-4B --drafter ./dspark-4b --num-prompts 200
  specserve calibrate --target smollm2 --drafter ./mine --data chats    as chats are served
  specserve calibrate --drafter dspark --temperature 0 --out ./greedy --plot greedy.png
  specserve calibrate --drafter dspark --no-speed           confidences alone
  specserve calibrate --target smollm2 --drafter ngram --data chats    speed alone
"""

_MODULE = "draft_node.calibration"
_SPEED_PROMPTS = 12
_PROMPTS = Path(specserve.__file__).parent / "assets" / "prompts"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the calibrating process is told; paths are absolute."""

    target: Path
    drafter: Path  # or the word for prompt lookup, of which speed alone is measured
    local_head: Path | None
    prompts: Path
    data: Path | None  # chats, whose held-out requests are asked instead of `prompts`
    num_prompts: int
    speed_prompts: int  # of these, at most, on which speed is measured
    num_tokens: int
    stride: int
    temperature: float
    verification: str
    num_kept: int
    gamma: int | None  # None: the drafter's own
    out: Path
    plot: Path | None  # None: beside the calibration, if plots can be drawn here
    seed: int
    threads: int
    device: str
    parent_pid: int
    stage: Literal["confidences", "speed"] = "confidences"  # what the process measures

    def encode(self) -> str:
        """As the calibrating process gets it."""
        return msgspec.json.encode(self, enc_hook=str).decode()

    @staticmethod
    def decode(text: str) -> "Job":
        return msgspec.json.decode(text, type=Job, dec_hook=lambda kind, value: kind(value))


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `calibrate`."""
    text, number = parser.add_argument, _number
    text("--target", metavar="MODEL", help="folder, .gguf file, hub id or smollm2 (default: tiny)")
    text("--drafter", metavar="FOLDER|HUB_ID|NAME", help="default: the embedded one")
    text("--local-head", metavar="FOLDER", help="DeLS head that is added to a DFlash")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument(
        "--prompts", type=Path, default=_PROMPTS, metavar="PATH",
        help='a .jsonl file of {"text": ...}, or a folder of such files (default: the embedded)',
    )  # fmt: skip
    asked.add_argument(
        "--data", type=Path, metavar="DIR",
        help="chats of `specserve train data`: requests of those that no training learns from",
    )  # fmt: skip
    number("--num-prompts", 50, "prompts; half are fitted, half evaluate", parser, least=2)
    number("--num-tokens", 128, "tokens that the target writes after each prompt", parser)
    number("--stride", 2, "tokens from one drafted block to the next", parser)
    text("--temperature", type=_temperature, default=1.0, help="of sampling (default 1)")
    text(
        "--verification", default="foreseeable", choices=("rejection", "foreseeable", "coupled"),
        help="method that drafts are verified by (default foreseeable)",
    )  # fmt: skip
    number("--num-kept", NUM_KEPT, "likeliest tokens that a draft distribution keeps", parser)
    gamma = "drafted tokens of a block; default: the drafter's own, the limit too (64 for lm)"
    number("--gamma", None, gamma, parser)
    text("--out", type=Path, metavar="FOLDER", help="for calibration.json (default: the drafter's)")
    text("--plot", type=Path, metavar="PNG", help="the diagram (default: OUT/reliability.png)")
    number("--seed", 0, "seed of all sampling", parser, least=0)
    speed = parser.add_mutually_exclusive_group()
    pairs = "prompts on which speculation is timed against plain decoding"
    number("--speed-prompts", _SPEED_PROMPTS, pairs, speed, least=2)
    speed.add_argument("--no-speed", action="store_true", help="time nothing")
    number("--threads", os.cpu_count() or 1, "CPU threads", parser)
    text("--device", default="cpu", help="cpu or cuda (default cpu)")


def run(arguments: argparse.Namespace) -> int:
    """Calibrate, then time; the exit code is that of the process that failed, or 0.

    Raises SpecserveError.
    """
    target = locate_target(arguments.target or TINY)
    wanted = SpeculationConfig(
        mode="sync", drafter=arguments.drafter, local_head=arguments.local_head
    )
    found = locate_drafter(wanted, target)
    is_lookup = arguments.drafter == NGRAM
    if is_lookup:
        _refuse_confidences(arguments)
    drafter = _folder(found.drafter, target, may_be_lookup=is_lookup)
    head = None if found.local_head is None else Path(found.local_head)
    # Whatever the command line names alike is handed on as it is.
    given: dict[str, Any] = {
        name: value for name, value in vars(arguments).items() if name in Job.__struct_fields__
    }
    resolved: dict[str, Any] = {
        "target": target,
        "drafter": drafter,
        "local_head": head,
        "prompts": Path(arguments.prompts).resolve(),
        "data": None if arguments.data is None else Path(arguments.data).resolve(),
        "out": Path(arguments.out or head or drafter).resolve(),
        "plot": None if arguments.plot is None else Path(arguments.plot).resolve(),
        "parent_pid": os.getpid(),
    }
    if arguments.plot is not None and Path(arguments.plot).suffix.lower() != ".png":
        raise InvalidField("--plot", f"{arguments.plot} does not end in .png")
    if arguments.num_tokens < 2 and not arguments.no_speed:
        problem = "1: decoding is timed behind the first token; give 2 or more, or --no-speed"
        raise InvalidField("--num-tokens", problem)
    job = Job(**{**given, **resolved})
    if is_lookup:
        return _measure(msgspec.structs.replace(job, stage="speed"))
    make_output_folder(job.out, "--out")
    if job.plot is not None:
        make_output_folder(job.plot.parent, "--plot")
    code = _measure(job)
    if code or arguments.no_speed:
        return code
    # In a process of its own: services want the memory that the first has taken.
    return _measure(msgspec.structs.replace(job, stage="speed"))


def _folder(drafter: str | None, target: Path, *, may_be_lookup: bool) -> Path:
    """The drafter's. Raises InvalidField for what has none, unless that is to be timed alone."""
    if drafter is None or (drafter == NGRAM and not may_be_lookup):
        others = ", ".join((*shipped_drafters(target), "a folder"))
        problem = "prompt lookup has no distributions and no confidences"
        raise InvalidField("--drafter", f"{problem}; name {others}, or {NGRAM} to time it alone")
    if Path(drafter).is_file():
        problem = f"{drafter} is a file, and a calibration lies in the drafter's folder"
        raise InvalidField("--drafter", f"{problem}; give a folder")
    return Path(drafter)


def _refuse_confidences(arguments: argparse.Namespace) -> None:
    """Raise InvalidField for what prompt lookup, which is timed alone, has no use for."""
    asked = {"--no-speed": arguments.no_speed, "--out": arguments.out, "--plot": arguments.plot}
    for flag, value in asked.items():
        if value:
            problem = f"{NGRAM} has no confidences to calibrate and is timed alone; leave it out"
            raise InvalidField(flag, problem)


def _measure(job: Job) -> int:
    command = [sys.executable, "-P", "-m", _MODULE, job.encode()]
    return subprocess.run(command, check=False).returncode


def _number(
    flag: str,
    default: int | None,
    what: str,
    parser: "argparse._ActionsContainer",  # pyright: ignore[reportPrivateUsage]
    *,
    least: int = 1,
) -> None:
    """A whole number of at least `least`."""

    def whole(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"has to be at least {least}")
        return value

    help_text = what if default is None else f"{what} (default {default})"
    parser.add_argument(flag, type=whole, default=default, help=help_text)


def _temperature(text: str) -> float:
    if not 0 <= (value := float(text)) <= 100:
        raise argparse.ArgumentTypeError("has to be between 0 and 100")
    return value
