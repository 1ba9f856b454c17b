# pyright: strict
"""Where the target's files are: the embedded folder, a local one, or a download from the hub.

Runs in the supervisor, before any process is started, so that a wrong name fails at once and the
ranks never race for one download. Reads no model.
"""

import re
from pathlib import Path

import specserve
from specserve.errors import InvalidField

EMBEDDED_TARGET = Path(specserve.__file__).parent / "assets" / "target"
EMBEDDED_NAME = "specserve-embedded"

_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+", re.ASCII)
# Safetensors and text only: nothing that a loader could be talked into executing.
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer*")


def locate_target(target: str | None) -> Path:
    """The folder of the target: embedded (None), local, or fetched from the hub.

    Raises InvalidField when it is none of these.
    """
    return EMBEDDED_TARGET if target is None else locate_folder(target, "model.target")


def locate_folder(name: str, field: str) -> Path:
    """A local folder or one fetched from the hub; raises InvalidField naming `field`."""
    path = Path(name).expanduser()
    if name and path.is_dir():  # Path("") is the current folder
        return path.resolve()
    if path.exists() or not _HUB_ID.fullmatch(name):
        raise InvalidField(field, f"{name!r} is neither a folder nor a hub id (a/b)")
    return _fetch(name, field)


def default_name(folder: Path) -> str:
    """The name clients see unless the user chose one."""
    return EMBEDDED_NAME if folder == EMBEDDED_TARGET else folder.name


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
    return Path(folder)
