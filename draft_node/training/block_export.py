"""Writes a trained block drafter as a folder in DeepSpec's dialect: weights, configuration, card.

Without embeddings and output head: they are the target's, and the loader takes them from there.
"""

import datetime
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from draft_node.drafters.spec import BlockSpec
from draft_node.training.block_objective import Figures
from draft_node.training.export import write_checksums
from specserve.model.config import RopeSpec

FIGURES = "held_out.json"
_LLAMA3 = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


@dataclass(frozen=True)
class TrainingRecord:
    """What the card says about the run."""

    command: str
    target: str  # name of the folder, and what its weights hash to
    steps: int
    tokens: int
    active_minutes: float
    num_anchors: int
    max_gap: int


def config_json(spec: BlockSpec, record: TrainingRecord) -> dict[str, object]:
    """config.json of DeepSpec's Qwen3DSparkModel; a DFlash is one without heads."""
    decoder = spec.decoder
    config: dict[str, object] = {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "block_size": spec.block_size,
        "target_layer_ids": list(spec.feature_layers),
        "mask_token_id": spec.mask_token_id,
        "num_hidden_layers": decoder.num_layers,
        "num_target_layers": spec.num_target_layers,
        "num_anchors": record.num_anchors,
        "markov_rank": spec.markov.rank if spec.markov else 0,
        "enable_confidence_head": spec.confidence is not None,
        "vocab_size": decoder.vocab_size,
        "hidden_size": decoder.hidden_size,
        "intermediate_size": decoder.intermediate_size,
        "num_attention_heads": decoder.num_heads,
        "num_key_value_heads": decoder.num_kv_heads,
        "head_dim": decoder.head_dim,
        "max_position_embeddings": decoder.max_position_embeddings,
        "hidden_act": "silu",
        "rms_norm_eps": decoder.rms_norm_eps,
        "attention_bias": False,
        "rope_parameters": _rope_json(decoder.rope),
        "layer_types": ["full_attention"] * decoder.num_layers,
        "tie_word_embeddings": False,
        "max_feature_gap": record.max_gap,  # ours: the longest gap it was trained to bridge
    }
    if spec.markov is not None:
        config["markov_head_type"] = spec.markov.kind.value
    if spec.confidence is not None:
        config["confidence_head_with_markov"] = spec.confidence.with_markov
    return config


def _rope_json(rope: RopeSpec) -> dict[str, object]:
    content: dict[str, object] = {"rope_type": rope.kind, "rope_theta": rope.theta}
    if rope.kind != "default":
        content["factor"] = rope.factor
    if rope.kind == "llama3":
        content |= {name: getattr(rope, name) for name in _LLAMA3}
    return content


def rounded(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights as they are stored: bfloat16."""
    return {name: w.detach().to("cpu", torch.bfloat16).contiguous() for name, w in weights.items()}


def write_drafter(
    weights: Mapping[str, Tensor],
    spec: BlockSpec,
    record: TrainingRecord,
    figures: Mapping[str, Mapping[int, Figures]],
    out: Path,
) -> None:
    """Write the folder; `figures` of the stored weights by domain and gap. Checksums come last."""
    out.mkdir(parents=True, exist_ok=True)
    _write_json(out / "config.json", config_json(spec, record))
    held_out = {
        domain: {f"gap {gap}": _plain(found) for gap, found in by_gap.items()}
        for domain, by_gap in figures.items()
    }
    _write_json(out / FIGURES, {"held_out": held_out, "training": asdict(record)})
    (out / "README.md").write_text(card(spec, record, figures))
    temporary = out / "model.safetensors.tmp"
    save_file(rounded(weights), temporary, metadata={"format": "pt"})
    temporary.chmod(0o644)
    os.replace(temporary, out / "model.safetensors")
    write_checksums(out)


def card(
    spec: BlockSpec, record: TrainingRecord, figures: Mapping[str, Mapping[int, Figures]]
) -> str:
    """The model card."""
    gaps = sorted({gap for by_gap in figures.values() for gap in by_gap})
    rows = [["held-out text", *(f"behind {gap}" for gap in gaps)], ["---"] * (len(gaps) + 1)]
    rows += [
        [domain, *(f"{by_gap[gap].tokens_per_round:.2f}" for gap in gaps)]
        for domain, by_gap in figures.items()
    ]
    slots = [["slot", *map(str, range(1, spec.gamma + 1))], ["---"] * (spec.gamma + 1)]
    slots += [
        [domain, *(f"{rate:.2f}" for rate in by_gap[gaps[0]].acceptance)]
        for domain, by_gap in figures.items()
    ]
    errors = [by_gap[gaps[0]].confidence_error for by_gap in figures.values()]
    confidence = ""
    if spec.confidence is not None:
        mean = sum(errors) / len(errors)
        confidence = f"\nUncalibrated confidences miss the acceptance by {mean:.3f} on average.\n"
    return _CARD.format(
        name=_describe(spec), target=record.target, gamma=spec.gamma,
        layers=", ".join(map(str, spec.feature_layers)), rows=_table(rows), slots=_table(slots),
        confidence=confidence, steps=record.steps, tokens=record.tokens / 1e6,
        minutes=record.active_minutes, gap=_describe_gap(record.max_gap), command=record.command,
        machine=f"{platform.machine()}, torch {torch.__version__}, "
                f"Python {platform.python_version()}",
        date=datetime.datetime.now(datetime.UTC).date(),
    )  # fmt: skip


def _describe(spec: BlockSpec) -> str:
    layers = f"{spec.decoder.num_layers} layers"
    if spec.markov is None and spec.confidence is None:
        return f"DFlash drafter, {layers}"
    parts = [layers]
    if spec.markov is not None:
        parts.append(f"{spec.markov.kind.value} Markov head of rank {spec.markov.rank}")
    if spec.confidence is not None:
        parts.append("confidence head")
    return "DSpark drafter, " + ", ".join(parts)


def _describe_gap(max_gap: int) -> str:
    if not max_gap:
        return "Trained with the features of every token before the anchor"
    return f"Trained with up to {max_gap} tokens before the anchor whose features are missing"


def _plain(figures: Figures) -> dict[str, object]:
    content = {name: value for name, value in asdict(figures).items() if value == value}
    return {name: _round(value) for name, value in content.items()}


def _round(value: float | list[float]) -> float | list[float]:
    return [round(v, 4) for v in value] if isinstance(value, list) else round(value, 4)


def _table(rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


_CARD = """\
# {name}

Drafts blocks of {gamma} tokens for the target `{target}`, from the residuals of its layers
{layers}. In DeepSpec's checkpoint format, anchor first; embeddings and output head are the
target's and not stored here. {gap}.

## Held-out figures

Expected tokens a round, the next token included, under rejection sampling at temperature 1, along
text that training never saw; domains called `self-...` were continued by the target itself.
Columns: how many tokens before the anchor lack features.

{rows}

Acceptance of each slot, given that those before it were accepted, without a gap:

{slots}
{confidence}
Of the stored bfloat16 weights, evaluated in float32. Figures also in `held_out.json`; file hashes
in `SHA256SUMS` (`sha256sum -c SHA256SUMS`).

## Training

{steps:,} steps, {tokens:.1f}M tokens, {minutes:.1f} active minutes ({machine}, {date}).

    {command}
"""
