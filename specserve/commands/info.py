# pyright: strict
"""`specserve info`: a running service, or this installation, machine and model."""

import argparse
import hashlib
import importlib.metadata
import platform
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from specserve import __version__
from specserve.api.figure_names import FIGURES, Figure
from specserve.commands.config_table import config_rows, in_words
from specserve.commands.connection import (
    add_access_options,
    client_at,
    refuse_idle_access,
    running_service,
)
from specserve.errors import InvalidField
from specserve.models.ballast import with_ballast
from specserve.models.config import ModelSpec, read_spec
from specserve.processes.launch import resolve_here
from specserve.processes.standard_streams import require_stdout, write_stdout
from specserve.settings.config import Config, load_config
from specserve.settings.hardware import probe
from specserve.settings.model_name import model_name
from specserve.settings.sizes import format_bytes, format_count, parse_count
from specserve.settings.target_source import locate_target

HELP = "show a running service, or this machine and the model that would be served"
EXAMPLES = """examples:
  specserve info                             versions, machine, the model that a launch serves
  specserve info --ballast 60M               the same with ballast, and what it adds
  specserve info --target ./Qwen3-0.6B
  specserve info --config serve.toml         and every setting as a launch here would resolve it
  specserve info --connect 127.0.0.1:7411    a running service and its load
"""

_PACKAGES = ("torch", "grpcio", "msgspec", "pyzmq", "tokenizers", "safetensors")
_DISTRIBUTION_NOTE = "ballast raises the cost of a forward and leaves the distribution as it is"

if TYPE_CHECKING:
    from specserve.client import Client

Section = dict[str, object]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `info`."""
    add_access_options(parser, "show this running service")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="show what this TOML file would serve"
    )
    parser.add_argument("--target", metavar="MODEL", help="folder, .gguf file, hub id or name")
    parser.add_argument("--ballast", metavar="PARAMS", help="as it would be with ballast")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the sections; raises SpecserveError."""
    require_stdout()
    if arguments.connect is not None:
        for name in ("config", "target", "ballast"):
            if getattr(arguments, name) is not None:
                raise InvalidField(f"--{name}", "is of no use with --connect")
        with client_at(running_service(arguments)) as client:
            sections = _running(client)
    else:
        refuse_idle_access(arguments)
        sections = _offline(arguments)
    text = msgspec.json.encode(sections).decode() + "\n" if arguments.json else layout(sections)
    write_stdout(text)
    return 0


def _running(client: "Client") -> dict[str, Section]:
    records = {
        "service": client.server_info(),
        "model": client.model_info(),
        "load": client.load(),
    }
    speculation = _speculation(client)
    sections: dict[str, Section] = {
        name: msgspec.to_builtins(record) for name, record in records.items()
    }
    known = {*sections["load"], *sections["service"]}  # and told there
    sections["speculation"] = {k: v for k, v in speculation.items() if k not in known}
    if sections["model"]["ballast_params"]:
        sections["model"]["ballast_note"] = _DISTRIBUTION_NOTE
    return sections


def _speculation(client: "Client") -> Section:
    """What it is, and what it achieves where there is any."""
    config = client.spec_config()
    section: Section = msgspec.to_builtins(config)
    if config.mode == "off":
        return section
    stats = client.spec_stats()
    rates: Section = {"acceptance_rate": stats.acceptance_rate, "hit_rate": stats.hit_rate}
    return section | rates | msgspec.to_builtins(stats)


def _offline(arguments: argparse.Namespace) -> dict[str, Section]:
    given = {"model.target": arguments.target, "model.ballast": arguments.ballast}
    overrides = {key: value for key, value in given.items() if value is not None}
    config = load_config(arguments.config, overrides)
    sections = {"versions": _versions(), "machine": _machine()}
    if arguments.config is None:
        return sections | {"model": _model(config)}
    resolved = resolve_here(config)
    settings: Section = {**config_rows(resolved)}
    return sections | {"model": _model(resolved), "settings": settings}


def _versions() -> Section:
    versions: Section = {"specserve": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "missing"
    return versions


def _machine() -> Section:
    hardware = probe()
    section: Section = {
        "cpu": hardware.cpu_name,
        "cores": len(hardware.cores),
        "available_memory": format_bytes(hardware.available_memory),
        "cuda_devices": len(hardware.cuda_devices),
    }
    for device in hardware.cuda_devices:
        section[f"cuda:{device.index}"] = f"{device.name}, {format_bytes(device.memory)}"
    return section


def _model(config: Config) -> Section:
    folder = locate_target(config.model.target)
    spec = read_spec(folder)
    if config.model.ballast is not None:
        spec = with_ballast(spec, parse_count(config.model.ballast, "model.ballast"))
    section: Section = {
        "name": config.model.name or model_name(folder),
        "files": str(folder),
        "architecture": spec.architecture,
        "parameters": format_count(spec.num_params - spec.ballast_params),
        "layers": spec.num_real_layers,
        "hidden_size": spec.hidden_size,
        "heads": f"{spec.num_heads} query, {spec.num_kv_heads} key-value",
        "vocab_size": spec.vocab_size,
        "max_model_len": config.model.max_model_len or spec.max_position_embeddings,
        "stored_in": ", ".join(spec.quantised) or spec.dtype,
        "weights_sha256": _weights_hash(folder),
        "ballast": _ballast(spec),
    }
    return section


def _ballast(spec: ModelSpec) -> str:
    if not spec.ballast_widths:
        return "none"
    size = format_count(spec.ballast_params)
    return f"{size} parameters in {len(spec.ballast_widths)} layers; {_DISTRIBUTION_NOTE}"


def _weights_hash(folder: Path) -> str:
    """Of the single weight file; sharded checkpoints are too large to hash for a glance."""
    path = folder if folder.is_file() else folder / "model.safetensors"
    if not path.is_file():
        return "sharded" if any(folder.glob("*.safetensors")) else "missing: no safetensors here"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def layout(sections: dict[str, Section]) -> str:
    """As people read it: names that say something, and what they mean where that is not all."""
    lines: list[str] = []
    for section, values in sections.items():
        lines.append(section)
        known = FIGURES.get(section, {})
        rows = [(known.get(key, Figure(key, "")), _in_words(values[key])) for key in values]
        width = max(len(figure.name) for figure, _ in rows)
        wide = max((len(value) for figure, value in rows if figure.meaning), default=0)
        for (name, meaning), value in rows:
            line = f"  {name:<{width}}  {value}"
            lines.append(f"{line:<{width + wide + 4}}  {meaning}" if meaning else line)
    return "\n".join(lines) + "\n"


def _in_words(value: object) -> str:
    """As a launch prints its settings; what went through 32 bits has no more digits than those."""
    if isinstance(value, float):
        return in_words(float(f"{value:.7g}"))
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        return ", ".join(f"{key} {_in_words(item)}" for key, item in fields.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_in_words, cast("list[object]", value))) or "none"
    return in_words("none" if value in (None, "") else value)
