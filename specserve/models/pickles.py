# pyright: strict
"""Weights that are never read: a pickle can run code while it is loaded."""

from pathlib import Path

from specserve.errors import Unsupported

_SUFFIXES = (".bin", ".pt", ".pth")


def refuse_pickles(folder: Path) -> None:
    """Raise `Unsupported` where a folder's weights are pickles alone."""
    if (problem := only_pickles(folder)) is not None:
        raise Unsupported(f"{folder}: {problem}")


def only_pickles(folder: Path) -> str | None:
    """What is wrong with a folder whose weights are pickles alone, and what to do; else None."""
    if any(folder.glob("*.safetensors")):
        return None
    names = sorted(path.name for path in folder.glob("*") if path.suffix in _SUFFIXES)
    if not names:
        return None
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"only pickled weights ({names[0]}{more}), which are never read because they can run code; "
        "convert them to safetensors, as model.safetensors beside config.json"
    )
