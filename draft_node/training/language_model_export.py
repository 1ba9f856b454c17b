"""Writes a distilled decoder as a Hugging Face folder with its target's tokenizer."""

import datetime
import json
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from draft_node.training.decoder import DecoderConfig
from draft_node.training.export import hf_config, write_checksums
from draft_node.training.frozen_target import FrozenTarget

FIGURES = "held_out.json"
# The tokenizer and where texts end: the target's.
_COPIED = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
           "chat_template.jinja", "generation_config.json")  # fmt: skip


@dataclass(frozen=True)
class ModelRecord:
    """What the card says about the run."""

    command: str
    target: str
    steps: int
    tokens: int
    active_minutes: float


def write_language_model(
    weights: Mapping[str, Tensor],
    shape: DecoderConfig,
    target: FrozenTarget,
    record: ModelRecord,
    figures: Mapping[str, float],
    out: Path,
) -> None:
    """Write the folder; `figures` are those of `DistilledDecoder.evaluate`. Checksums come last."""
    out.mkdir(parents=True, exist_ok=True)
    for name in _COPIED:
        if (target.folder / name).is_file():
            shutil.copyfile(target.folder / name, out / name)
    end_ids = target.spec.eos_token_ids
    end_id = end_ids[0] if end_ids else 0
    _write_json(out / "config.json", hf_config(shape, end_id, end_id))
    kept = {name: round(value, 4) for name, value in figures.items()}
    _write_json(out / FIGURES, {"held_out": kept})
    num_params = sum(weight.numel() for weight in weights.values())
    (out / "README.md").write_text(_card(shape, num_params, record, kept))
    rounded = {
        name: w.detach().to("cpu", torch.bfloat16).contiguous() for name, w in weights.items()
    }
    temporary = out / "model.safetensors.tmp"
    save_file(rounded, temporary, metadata={"format": "pt"})
    temporary.chmod(0o644)
    os.replace(temporary, out / "model.safetensors")
    write_checksums(out)


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def _card(
    shape: DecoderConfig, num_params: int, record: ModelRecord, figures: Mapping[str, float]
) -> str:
    rows = [f"| {name} | {value:.3f} |" for name, value in figures.items()]
    return _CARD.format(
        params=num_params / 1e6, layers=shape.num_hidden_layers, hidden=shape.hidden_size,
        target=record.target, rows="\n".join(rows), steps=record.steps,
        tokens=record.tokens / 1e6, minutes=record.active_minutes,
        machine=f"{platform.machine()}, torch {torch.__version__}",
        date=datetime.datetime.now(datetime.UTC).date(), command=record.command,
    )  # fmt: skip


_CARD = """\
# A standalone language model as a drafter

A Qwen3-architecture model of {params:.2f}M parameters ({layers} layers, width {hidden}) with the
vocabulary of the target `{target}`, whose distributions it was trained to have. Loads with
`transformers` as it stands.

Held-out nats a token, and the mean overlap of its distribution with the target's at temperature 1
(the share of drafted tokens that would stand), of the stored bfloat16 weights:

| held-out text | |
| --- | --- |
{rows}

## Training

{steps:,} steps, {tokens:.1f}M tokens, {minutes:.1f} active minutes ({machine}, {date}).

    {command}
"""
