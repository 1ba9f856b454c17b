"""Which drafters a bench compares: what the command line says, and how one is loaded.

A drafter is loaded as the service loads it, with its calibration if there is one beside it.
"""

import argparse
import re
from pathlib import Path

import msgspec

from specserve.backends.choose import choose_backend
from specserve.drafters import colocated
from specserve.drafters.protocol import Drafter
from specserve.errors import InvalidField
from specserve.models.transformer import Transformer
from specserve.settings.config import NUM_KEPT, SpeculationConfig
from specserve.settings.drafter_source import NGRAM, locate_drafter, shipped_drafters

DEFAULT_GAMMA = 7
DEFAULT_NUM_KEPT = NUM_KEPT
DSPARK, DSPARK_ASYNC, DFLASH, EAGLE3 = "dspark", "dspark-async", "dflash", "eagle3"
LOCAL_HEAD, LANGUAGE_MODEL = "dels", "lm"
_WORD = re.compile(r"(?:(?P<label>[\w.-]+)=)?(?P<place>[^+]+)(?:\+(?P<head>.+))?")


class DrafterChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A drafter by the name it has in tables.

    `gamma` cuts the drafter's own or, where its files name none, sets it. Of a draft distribution,
    the `num_kept` likeliest tokens are drawn from where drafts are verified by ratio.
    """

    label: str
    drafter: str  # as for `specserve launch --drafter`
    local_head: str | None = None
    gamma: int = DEFAULT_GAMMA
    num_kept: int = DEFAULT_NUM_KEPT

    def located(self, target: Path) -> SpeculationConfig:
        """The speculation of a service with this drafter. Raises InvalidField for what is none."""
        wanted = SpeculationConfig(
            mode="sync", drafter=self.drafter, local_head=self.local_head, gamma=self.gamma
        )
        return locate_drafter(wanted, target)


def add_drafter_options(parser: argparse.ArgumentParser) -> None:
    """--drafter, --local-head, --gamma and --num-kept."""
    parser.add_argument(
        "--drafter", nargs="+", action="extend", metavar="[LABEL=]NAME|FOLDER[+HEAD]",
        help="drafters to compare, +HEAD adds a local head (default: the target's own, and ngram)",
    )  # fmt: skip
    parser.add_argument(
        "--local-head", metavar="FOLDER", help=f"the drafter {DFLASH}, once more with this head"
    )
    parser.add_argument(
        "--gamma", type=int, default=DEFAULT_GAMMA, metavar="N",
        help=f"drafted tokens a round at most (default {DEFAULT_GAMMA})",
    )  # fmt: skip
    parser.add_argument(
        "--num-kept", type=int, default=DEFAULT_NUM_KEPT, metavar="N",
        help=f"likeliest tokens that a draft distribution keeps (default {DEFAULT_NUM_KEPT})",
    )  # fmt: skip


def read_choices(arguments: argparse.Namespace, target: Path) -> list[DrafterChoice]:
    """What the flags of `add_drafter_options` ask for, else what comes with the target.

    Raises InvalidField.
    """
    for field, value in (("--gamma", arguments.gamma), ("--num-kept", arguments.num_kept)):
        if value < 1:
            raise InvalidField(field, f"{value} is less than 1")
    words = default_words(target) if arguments.drafter is None else arguments.drafter
    choices = [_limited(parse_choice(word), arguments) for word in words]
    if arguments.local_head is not None:
        base = next((choice for choice in choices if choice.label == DFLASH), None)
        if base is None:
            raise InvalidField("--local-head", f"no drafter here is called {DFLASH}")
        choices.append(
            msgspec.structs.replace(base, label=LOCAL_HEAD, local_head=arguments.local_head)
        )
    labels = [choice.label for choice in choices]
    for label in labels:
        if labels.count(label) > 1:
            raise InvalidField("--drafter", f"two drafters are called {label}; use LABEL=FOLDER")
    return choices


def default_words(target: Path) -> list[str]:
    """The drafters that come with the target, a head on top of its DFlash; and prompt lookup."""
    known = shipped_drafters(target)
    words = [name for name in (DSPARK, DFLASH, EAGLE3, LANGUAGE_MODEL) if name in known]
    if DFLASH in known and LOCAL_HEAD in known:
        words.append(f"{LOCAL_HEAD}={DFLASH}+{LOCAL_HEAD}")
    return [*words, NGRAM]


def read_depths(arguments: argparse.Namespace) -> list[DrafterChoice]:
    """`--depth-drafters LAYERS=FOLDER ...` in order of depth. Raises InvalidField."""
    choices = [_limited(parse_choice(word), arguments) for word in arguments.depth_drafters]
    for choice in choices:
        if not choice.label.isdecimal():
            raise InvalidField("--depth-drafters", f"{choice.label!r} is no number of layers")
    return sorted(choices, key=lambda choice: int(choice.label))


def _limited(choice: DrafterChoice, arguments: argparse.Namespace) -> DrafterChoice:
    return msgspec.structs.replace(choice, gamma=arguments.gamma, num_kept=arguments.num_kept)


def parse_choice(word: str) -> DrafterChoice:
    """`[LABEL=]NAME|FOLDER[+HEAD]`; without a label, the last part of the name is one."""
    found = _WORD.fullmatch(word)
    if found is None:
        raise InvalidField("--drafter", f"{word!r} is not [LABEL=]NAME|FOLDER[+HEAD]")
    place, head = found["place"], found["head"]
    label = found["label"] or Path(place).name + (f"+{Path(head).name}" if head else "")
    return DrafterChoice(label=label, drafter=place, local_head=head)


def load_choice(
    choice: DrafterChoice,
    target: Path,
    model: Transformer,
    *,
    num_context_tokens: int,
    max_positions: int,
) -> Drafter:
    """Ready to draft for `model`, which is that of the folder `target`.

    Raises `Unsupported` for a checkpoint that cannot be used here.
    """
    return colocated.load(
        choice.located(target),
        target=target,
        model=model,
        backend=choose_backend(model.embedding.device),
        num_context_tokens=num_context_tokens,
        max_positions=max_positions,
    )
