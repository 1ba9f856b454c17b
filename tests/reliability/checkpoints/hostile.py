"""One folder or file a kind of harm, each a sound small model but for that."""

import json
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specserve.settings.target_source import EMBEDDED_TARGET
from tests.specserve.models.gguf.files import write_gguf

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


class Canary:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self._path,)


@dataclass(frozen=True)
class Hostile:
    """How to write it into a folder that is empty, and what the refusal has to name."""

    write: Callable[[Path, Path], Path]  # of the folder and the canary's path; the model's path
    names: str


def _sound(folder: Path) -> Path:
    """The embedded model; its files are links, as in the hub's cache."""
    folder.mkdir()
    for path in EMBEDDED_TARGET.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def _write(path: Path, content: bytes | str) -> None:
    """In the place of what is there."""
    path.unlink(missing_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def _config(**fields: object) -> str:
    return json.dumps(json.loads((EMBEDDED_TARGET / "config.json").read_bytes()) | fields)


def _safetensors(path: Path, header: dict[str, object] | bytes, size: int | None = None) -> None:
    """`size`: what the header is said to have, where that is not so."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if size is None else size
    _write(path, struct.pack("<Q", length) + text + bytes(64))


def _with_weights(header: dict[str, object] | bytes, size: int | None = None) -> Hostile:
    def write(folder: Path, _: Path) -> Path:
        _sound(folder)
        _safetensors(folder / _WEIGHTS, header, size)
        return folder

    return Hostile(write, _WEIGHTS)


def _tensor(start: int, end: int, shape: list[int]) -> dict[str, object]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}


def _with_config(names: str, **fields: object) -> Hostile:
    def write(folder: Path, _: Path) -> Path:
        _sound(folder)
        _write(folder / "config.json", _config(**fields))
        return folder

    return Hostile(write, names)


def _traversal(folder: Path, _: Path) -> Path:
    _sound(folder)
    (folder / _WEIGHTS).rename(folder.parent / "outside.safetensors")  # which is sound
    index = {"weight_map": {"norm.weight": "../outside.safetensors"}}
    (folder / _INDEX).write_text(json.dumps(index))
    return folder


def _own_code(folder: Path, canary: Path) -> Path:
    _sound(folder)
    code = f"import os\nos.mkdir({str(canary)!r})\nclass Model: ...\n"
    for module in ("modeling_evil", "configuration_evil", "sitecustomize", "__init__"):
        (folder / f"{module}.py").write_text(code)
    auto_map = {"AutoConfig": "configuration_evil.Model", "AutoModel": "modeling_evil.Model"}
    content = _config(architectures=["EvilForCausalLM"], auto_map=auto_map, trust_remote_code=True)
    _write(folder / "config.json", content)
    return folder


def _pickle(folder: Path, canary: Path) -> Path:
    _sound(folder)
    (folder / _WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Canary(canary)))
    return folder


def _link(name: str, to: str) -> Callable[[Path, Path], Path]:
    def write(folder: Path, _: Path) -> Path:
        _sound(folder)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(to)
        return folder

    return write


def _gguf(folder: Path, **metadata: object) -> Path:
    """Sound but for `metadata`."""
    folder.mkdir()
    source = _sound(folder / "source")
    keys = {name.replace("__", "."): value for name, value in metadata.items()}
    return write_gguf(folder / "model.gguf", source, metadata=keys)


def _gguf_counts(folder: Path, _: Path) -> Path:
    path = _gguf(folder)
    content = bytearray(path.read_bytes())
    content[8:24] = struct.pack("<QQ", 2**60, 2**60)
    path.write_bytes(content)
    return path


def _gguf_string(folder: Path, _: Path) -> Path:
    path = _gguf(folder)
    content = bytearray(path.read_bytes())
    content[24:32] = struct.pack("<Q", 2**63)  # of the first key
    path.write_bytes(content)
    return path


def _gguf_offset(folder: Path, _: Path) -> Path:
    """A tensor that begins behind the file's end."""
    path = _gguf(folder)
    content = bytearray(path.read_bytes())
    at = content.index(b"output_norm.weight") + len(b"output_norm.weight")
    at += 4 + 8 + 4  # number of dimensions, the one, the type
    content[at : at + 8] = struct.pack("<Q", 2**62)
    path.write_bytes(content)
    return path


CHECKPOINTS: dict[str, Hostile] = {
    "a header of 2^63 bytes": _with_weights(b"{}", 2**63),
    "a header that nests": _with_weights(b'{"a":' * 100_000),
    "tensors that overlap": _with_weights(
        {"norm.weight": _tensor(0, 64, [16]), "lm_head.weight": _tensor(32, 64, [8])}
    ),
    "a tensor beyond the file": _with_weights({"norm.weight": _tensor(0, 2**62, [2**60])}),
    "an index that leaves its folder": Hostile(_traversal, _INDEX),
    "code of its own": Hostile(_own_code, "architectures"),
    "a pickle": Hostile(_pickle, "pytorch_model.bin"),
    "counts of a GGUF": Hostile(_gguf_counts, "do not fit into the file"),
    "a string of a GGUF": Hostile(_gguf_string, "a string of"),
    "an offset of a GGUF": Hostile(_gguf_offset, "output_norm.weight"),
    "an epsilon of a GGUF": Hostile(
        lambda folder, _: _gguf(folder, qwen3__attention__layer_norm_rms_epsilon=1e30),
        "qwen3.attention.layer_norm_rms_epsilon",
    ),
    "a frequency of a GGUF": Hostile(
        lambda folder, _: _gguf(folder, qwen3__rope__freq_base=1e-30), "qwen3.rope.freq_base"
    ),
    "a size beyond memory": _with_config("hidden_size", hidden_size=10**9),
    "an epsilon that is no number": _with_config("rms_norm_eps", rms_norm_eps=float("nan")),
    "a number of 400 digits": _with_config("vocab_size", vocab_size=10**400),
    "a configuration without end": Hostile(_link("config.json", "/dev/zero"), "config.json"),
    "weights without end": Hostile(_link(_WEIGHTS, "/dev/zero"), _WEIGHTS),
    "a tokenizer without end": Hostile(_link("tokenizer.json", "/dev/zero"), "tokenizer.json"),
}
