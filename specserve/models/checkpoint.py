"""The weights of one checkpoint, a folder of safetensors or a GGUF file: what it holds, and parts.

Names are given without the "model." prefix that most checkpoints carry. Nothing else is read: the
pickled formats can execute code. Knows no architecture; the caller says what to expect.
"""

import contextlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from specserve.errors import Unsupported
from specserve.models.model_files import read_regular, refuse_pickles
from specserve.models.scaled_bytes import SCALE, ScaledBytes, scaled_names

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
FLOAT_DTYPES = ("F32", "BF16", "F16")
_PREFIX = "model."
_BUFFER_SUFFIX = "rotary_emb.inv_freq"  # old checkpoints carry this derivable table


class Checkpoint:
    """The open files of `folder`; a context manager. Raises `Unsupported` if one is malformed.

    `folder` may be a GGUF file. What is quantised, there or as bytes with scales, is read as
    float32.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = contextlib.ExitStack()
        self._tensors: dict[str, tuple[Any, str]] = {}  # name -> (open file, name in the file)
        self._dtypes = FLOAT_DTYPES
        try:
            for path in _weight_files(folder):
                self._add(path)
            self._join_scales()
        except BaseException:
            self._files.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._files.close()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def ignore(self, name: str) -> None:
        """Act as if the file did not hold `name`; it need not."""
        self._tensors.pop(name, None)

    def check(
        self,
        expected: Mapping[str, tuple[int, ...]],
        optional: Collection[str] = (),
        tables: Mapping[str, str] | None = None,
    ) -> None:
        """Raise `Unsupported` unless the tensors are exactly `expected`, shapes included.

        `tables` names those that hold no weights, and the dtype each must have.
        """
        tables = tables or {}
        missing = sorted(expected.keys() - self._tensors.keys() - set(optional))
        if missing:
            raise Unsupported(f"{self.folder}: tensor {missing[0]} is missing{_more(missing)}")
        unknown = sorted(self._tensors.keys() - expected.keys())
        if unknown:
            raise Unsupported(f"{self.folder}: unknown tensor {unknown[0]}{_more(unknown)}")
        for name, (file, stored_name) in self._tensors.items():
            part = file.get_slice(stored_name)
            shape, dtype = tuple(part.get_shape()), part.get_dtype()
            if shape != expected[name]:
                raise Unsupported(
                    f"{self.folder}: tensor {name} has shape {list(shape)}, "
                    f"the configuration asks for {list(expected[name])}"
                )
            if isinstance(file, ScaledBytes):
                continue
            allowed = (tables[name],) if name in tables else self._dtypes
            if dtype not in allowed:
                raise Unsupported(
                    f"{self.folder}: tensor {name} has dtype {dtype}, "
                    f"not one of {', '.join(allowed)}"
                )

    def first_matrix_beyond(self, dtypes: Collection[str]) -> tuple[str, str] | None:
        """Name and dtype of a matrix stored in none of `dtypes`, as safetensors calls them."""
        for name, (file, key) in self._tensors.items():
            part = file.get_slice(key)
            if part.get_dtype() not in dtypes and len(part.get_shape()) > 1:
                return name, part.get_dtype()
        return None

    def read(self, name: str, part: tuple[slice, ...] = ()) -> torch.Tensor:
        """A tensor, or the part of it that `part` indexes; nothing else is read from disk."""
        file, stored_name = self._tensors[name]
        try:
            return file.get_slice(stored_name)[part] if part else file.get_tensor(stored_name)
        except SafetensorError as error:
            raise Unsupported(f"{self.folder}: tensor {name}: {error}") from error

    def _open(self, path: Path) -> Any:  # noqa: ANN401 - safetensors' is untyped
        if path != self.folder:
            return safe_open(path, framework="pt")
        # Imported here: it takes a tenth of a second, and most checkpoints are folders.
        from specserve.models.gguf.weights import QUANTISED, GgufWeights

        self._dtypes = (*FLOAT_DTYPES, *sorted(QUANTISED))
        return GgufWeights(path)

    def _add(self, path: Path) -> None:
        try:
            file = self._files.enter_context(self._open(path))
        except (SafetensorError, OSError) as error:
            raise Unsupported(f"{path}: not a readable safetensors file: {error}") from error
        for stored_name in file.keys():  # noqa: SIM118 (not a mapping)
            name = stored_name.removeprefix(_PREFIX)
            if name.endswith(_BUFFER_SUFFIX):
                continue
            if name in self._tensors:
                raise Unsupported(f"{path}: tensor {name} is stored twice")
            self._tensors[name] = (file, stored_name)

    def _join_scales(self) -> None:
        for name in list(scaled_names(self._tensors)):
            if name not in self._tensors:  # it was taken for the scales of another
                raise Unsupported(f"{self.folder}: tensor {name}: scales that have scales")
            file, stored_name = self._tensors[name]
            if self._tensors.pop(name + SCALE) != (file, stored_name + SCALE):
                raise Unsupported(f"{self.folder}: tensor {name}: its scales are in another file")
            try:
                self._tensors[name] = ScaledBytes(file, stored_name), stored_name
            except Unsupported as error:
                raise Unsupported(f"{self.folder}: {error}") from error


def _weight_files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    index = folder / INDEX_FILE
    if index.is_file():
        return [folder / name for name in _indexed_files(index)]
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        raise Unsupported(f"{folder}: {len(found)} .safetensors files but no {INDEX_FILE}")
    refuse_pickles(folder)
    raise Unsupported(f"{folder}: no .safetensors file")


def _indexed_files(index: Path) -> list[str]:
    try:
        weight_map: object = json.loads(read_regular(index))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unsupported(f"{index}: not a weight index: {error!r}") from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise Unsupported(f"{index}: weight_map is not a filled object")
    names = set(weight_map.values())
    for name in names:
        # A bare file name: an index must not reach outside its folder.
        if not isinstance(name, str) or Path(name).name != name or "\\" in name:
            raise Unsupported(f"{index}: {name!r} is not a file name inside the folder")
        if not name.endswith(".safetensors"):
            raise Unsupported(f"{index}: {name!r} is not a .safetensors file")
    return sorted(names)


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
