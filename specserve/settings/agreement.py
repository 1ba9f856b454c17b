# pyright: strict
"""What has to be the same on every machine of a launch, and what is wrong where it is not.

Versions, the model's and the drafters' files, and every setting that is about what is computed.
Where files lie, who gets in and how much is logged is each machine's own affair. Weights are told
apart by their sizes and by how they begin and end: a gigabyte takes seconds to read, and what is
wrong in practice is another model, another quantisation or an unfinished copy.
"""

import hashlib
import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from specserve import __version__
from specserve.errors import InvalidField
from specserve.settings.config import Config, SpeculationConfig
from specserve.settings.drafter_source import NGRAM
from specserve.settings.hosts import HostFacts
from specserve.telemetry import one_line

# Read by somebody who computes; not readme files, nor what version control keeps.
_SUFFIXES = frozenset({".json", ".jinja", ".safetensors", ".gguf", ".model"})
_PIECE_BYTES = 1 << 20
_WHOLE_BYTES = 64 << 20  # files up to this size are read whole
_MOST_SHOWN = 200  # characters of a value
_SECTIONS = ("model", "topology", "engine", "speculation")
_OWN = frozenset(  # of these sections, what may differ
    {
        "topology.node_rank", "topology.rendezvous", "topology.private_network",
        "topology.rendezvous_timeout_s", "topology.node_timeout_s", "topology.mps",
    }
)  # fmt: skip
_FILES = (
    "model.target",
    "speculation.drafter",
    "speculation.colocated_drafter",
    "speculation.local_head",
)
FEATURE_SIZE = "feature_size"  # of what a drafter reads of each token
MAX_POSITIONS = "model.max_model_len"  # which a draft node may have more of
_VERSIONS = {"specserve": __version__, "torch": importlib.metadata.version("torch")}


def agreed_on(config: Config, folder: Path, device: str) -> dict[str, str]:
    """What this machine will go by; `folder` is the target's, and drafters are located.

    Raises InvalidField for files that cannot be read.
    """
    found = dict(_VERSIONS)
    for section in _SECTIONS:
        values = msgspec.structs.asdict(getattr(config, section))
        found |= {f"{section}.{key}": str(value) for key, value in values.items()}
    found |= {"topology.device": device, "model.target": _mark("model.target", folder)}
    for key in _FILES[1:]:
        if found[key] not in ("None", NGRAM):
            found[key] = _mark(key, Path(found[key]))
    return {key: value for key, value in found.items() if key not in _OWN}


def agreed_with_drafts(
    target: Path, speculation: SpeculationConfig, *, feature_size: int, gamma: int
) -> dict[str, str]:
    """What a target and a draft node that serves others besides have to have the same of.

    `target` is the model's folder, and drafters are located. Raises InvalidField for files that
    cannot be read.
    """
    found = {**_VERSIONS, "model.target": _mark("model.target", target)}
    for key in ("speculation.drafter", "speculation.local_head"):
        value = str(getattr(speculation, key.partition(".")[2]))
        found[key] = value if value in ("None", NGRAM) else _mark(key, Path(value))
    return found | {"speculation.gamma": str(gamma), FEATURE_SIZE: str(feature_size)}


def difference(
    ours: Mapping[str, str], theirs: Mapping[str, str], our_name: str, their_name: str
) -> InvalidField | None:
    """The first key under which `theirs` has something else than `ours`, if there is one."""
    for key in dict.fromkeys((*ours, *theirs)):
        here, there = ours.get(key, "None"), theirs.get(key, "None")
        if here != there:
            return InvalidField(key, _in_words(key, here, there, our_name, their_name))
    return None


def objection(first: HostFacts, other: HostFacts) -> InvalidField | None:
    """Why `other` cannot be part of what the first machine has begun, if it cannot."""
    return difference(first.agreed, other.agreed, first.name, other.name)


def missing_hosts(there: Sequence[HostFacts], nnodes: int) -> str:
    """Who has not come, in words: "node 1 and node 3"; empty if all have."""
    ranks = {facts.node_rank for facts in there}
    missing = [f"node {rank}" for rank in range(nnodes) if rank not in ranks]
    return " and ".join(filter(None, (", ".join(missing[:-1]), *missing[-1:])))


def _in_words(key: str, ours: str, theirs: str, first: str, other: str) -> str:
    if key in _VERSIONS:
        there = "none" if theirs == "None" else _shown(theirs)
        problem = f"{there} is installed on {other}, {ours} on {first}"
        return f"{problem}; install the same on both"
    if key in _FILES and {"None", NGRAM}.isdisjoint({ours, theirs}):
        problem = f"the files on {other} are not those on {first}"
        return f"{problem}; copy the folder or file, or name the same one"
    problem = f"{_shown(theirs)} on {other}, {_shown(ours)} on {first}"
    if key == FEATURE_SIZE:
        return f"{problem}; start both with the same drafter and model"
    return f"{problem}; start both with the same, or with --set {key}=VALUE"


def _shown(value: str) -> str:
    """On one line, whoever has said it."""
    if value == "None":
        return "not set"
    return one_line(value, _MOST_SHOWN)


def _mark(key: str, path: Path) -> str:
    """Of what a folder or a file holds, wherever it lies. Raises InvalidField."""
    digest = hashlib.sha256()
    try:
        for name, file in _files(path):
            size = file.stat().st_size
            digest.update(f"{name} {size}\n".encode())
            with file.open("rb") as content:
                if size <= _WHOLE_BYTES:
                    digest.update(content.read())
                    continue
                digest.update(content.read(_PIECE_BYTES))
                content.seek(-_PIECE_BYTES, 2)
                digest.update(content.read())
    except OSError as error:
        raise InvalidField(key, f"cannot read {path}: {error.strerror}") from error
    return f"files {digest.hexdigest()[:16]}"


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """Those that count, by name; a file alone may have any."""
    if not path.is_dir():
        yield "", path
        return
    for file in sorted(path.iterdir()):
        if file.suffix in _SUFFIXES and file.is_file():
            yield file.name, file
