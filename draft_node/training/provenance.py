"""Where trained weights come from, how, and what to type with them: the end of every model card.

Weights that are cut from a model, or learn what it writes, are derived from it, so that its licence
goes along; and who passes them on has to name what they learned from.
"""

import argparse
import datetime
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from draft_node.training.chats.store import MANIFEST
from draft_node.training.checkpoint import Progress
from draft_node.training.self_text import weights_digest
from specserve.models.config import read_json
from specserve.models.gguf.container import GgufFile
from specserve.settings.target_source import (
    EMBEDDED_TARGET,
    GGUF_SUFFIX,
    SMOLLM2,
    TINY,
    find_smollm2,
)

FIGURES = "held_out.json"  # beside the weights
_A_DFLASH = "DFLASH"  # the folder or name of one, where nobody has said which


@dataclass(frozen=True)
class RunRecord:
    """What a card says about the run."""

    command: str
    target: str  # name of the folder or file, and what its weights hash to
    steps: int
    tokens: int
    active_minutes: float
    origin: str = ""  # sentences of `origin`
    earlier: tuple[str, ...] = ()  # commands that made what the run went on from, the first first
    copied: tuple[int, ...] = ()  # the target's layers as which the weights' own layers began
    use: tuple[str, ...] = ()  # commands that calibrate and serve what the run has made
    epochs: Mapping[str, float] = field(default_factory=dict[str, float])  # by domain of text

    @staticmethod
    def of(
        arguments: argparse.Namespace,
        progress: Progress,
        command: str,
        copied: Sequence[int] = (),
        epochs: Mapping[str, float] | None = None,
    ) -> "RunRecord":
        """The record of a run with these flags, as far as it has come.

        `copied`: the layers of the target that a run without --init began with.
        """
        before = _run_of(getattr(arguments, "init", None))
        commands = (*before.get("earlier", ()), before.get("command"))
        layers = tuple(copied or before.get("copied", ()))
        return RunRecord(
            command=command,
            target=f"{arguments.target.name} ({weights_digest(arguments.target)[:12]})",
            steps=progress.step,
            tokens=progress.tokens,
            active_minutes=progress.active_s / 60,
            origin=origin(arguments, layers),
            earlier=tuple(command for command in commands if isinstance(command, str)),
            copied=layers,
            use=commands_with(arguments, arguments.out.name),
            epochs={name: round(count, 2) for name, count in (epochs or {}).items()},
        )

    def beside(self, figures: Mapping[str, object]) -> dict[str, object]:
        """What `held_out.json` says: figures by name, and the run."""
        return {**figures, "training": asdict(self)}


def _run_of(init: Path | None) -> dict[str, Any]:
    """What a folder tells of the run that made it; nothing where it does not say."""
    path = Path() if init is None else init / FIGURES
    return read_json(path, dict[str, Any]).get("training", {}) if path.is_file() else {}


def origin(arguments: argparse.Namespace, copied: Sequence[int] = ()) -> str:
    """What the weights are derived from, and what they learned, with licences that are known."""
    licence = licence_of(arguments.target)
    terms = "" if licence is None else f" (licence {licence}, which goes along with them)"
    begun = ""
    if copied:
        layers = f"layer{'s' if len(copied) > 1 else ''} {', '.join(map(str, copied))}"
        begun = f" Their layers began as its {layers}, of which nothing was frozen."
    if (init := getattr(arguments, "init", None)) is not None:
        begun += f" They go on from `{init.name}`."
    target = arguments.target.name
    return f"The weights are derived from `{target}`{terms}.{begun} {_learned(arguments)}"


def _learned(arguments: argparse.Namespace) -> str:
    if arguments.data is not None:
        about = _subjects(arguments.data)
        return f"They learned the answers of the chats in `{arguments.data}`{about}."
    if arguments.text is not None:
        text = f"the text in `{arguments.text}`"
    else:
        text = (
            "Python sources and documentation of the installation they were trained in, each part "
            "under the licence of its package"
        )
    written = ", and what the target wrote behind it" if arguments.self_text else ""
    return f"They learned {text}{written}."


def _subjects(data: Path) -> str:
    path = data / MANIFEST
    manifest = read_json(path, dict[str, Any]) if path.is_file() else {}
    sources = manifest.get("licences_of_sources", {})
    if not sources:
        return ", which the target wrote itself"
    named = ", ".join(f"{name}: {licence}" for name, licence in sources.items())
    return f", which the target wrote itself, on questions of its own and about sources ({named})"


def licence_of(target: Path) -> str | None:
    """What a GGUF file, or the head of a folder's model card, says; None where nothing does."""
    if target.suffix == GGUF_SUFFIX:
        with GgufFile(target) as file:
            named = file.metadata.get("general.license")
        return named if isinstance(named, str) else None
    card = target / "README.md"
    lines = card.read_text(errors="replace").splitlines() if card.is_file() else []
    if lines[:1] != ["---"]:
        return None
    head = lines[1 : lines.index("---", 1) if "---" in lines[1:] else 1]
    values = (line.partition(":")[2].strip() for line in head if line.startswith("license:"))
    return next(values, None)


def provenance(record: RunRecord) -> str:
    """The last sections of a model card."""
    earlier = "; `--init` is what the commands above the last one made" if record.earlier else ""
    use = _USE.format(commands="\n    ".join(record.use)) if record.use else ""
    read = ", ".join(f"{name} {count:g} times" for name, count in record.epochs.items())
    return use + _SECTIONS.format(
        origin=record.origin, steps=record.steps, tokens=record.tokens, earlier=earlier,
        read=f" ({read})" if read else "",
        minutes=record.active_minutes, commands="\n    ".join((*record.earlier, record.command)),
        machine=f"{platform.machine()}, torch {torch.__version__}, "
                f"Python {platform.python_version()}",
        date=datetime.datetime.now(datetime.UTC).date(),
    )  # fmt: skip


_USE = """\
## How to use it

    {commands}

"""
_SECTIONS = """\
## Where it comes from

{origin}

## Training

{steps:,} steps, {tokens:,} tokens{read}, {minutes:.1f} active minutes ({machine}, {date});
`curve.csv` has its curves{earlier}.

    {commands}
"""


def commands_with(arguments: argparse.Namespace, out: str) -> tuple[str, str]:
    """To calibrate, and to serve, the drafter that a run with these flags has written to `out`."""
    target = ["--target", _name(arguments.target)]
    drafter = ["--drafter", out]
    if arguments.kind == "local-head":
        drafter = ["--drafter", str(arguments.fuse_with or _A_DFLASH), "--local-head", out]
    data = [] if arguments.data is None else ["--data", str(arguments.data)]
    return (
        shlex.join(["specserve", "calibrate", *target, *drafter, *data]),
        shlex.join(["specserve", "launch", *target, *drafter]),
    )


def _name(target: Path) -> str:
    if target == EMBEDDED_TARGET:
        return TINY
    return SMOLLM2 if target == find_smollm2() else str(target)
