"""Writes a trained drafter as a folder in DeepSpec's dialect: weights, configuration, card.

Without embeddings and output head: they are the target's, and the loader takes them from there.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from draft_node.training.block_config import config_json
from draft_node.training.block_objective import Figures
from draft_node.training.export import write_checksums
from draft_node.training.provenance import FIGURES, RunRecord, provenance
from specserve.drafters.spec import BlockSpec, Eagle3Spec
from specserve.models.scaled_bytes import SCALE, packed, unpacked


@dataclass(frozen=True, kw_only=True)
class TrainingRecord(RunRecord):
    """What the card and the configuration say about the run."""

    num_anchors: int
    max_gap: int


def stored(weights: Mapping[str, Tensor], bits: int = 16) -> dict[str, Tensor]:
    """The weights as they are stored: bfloat16, or (`bits` 8) matrices as bytes with scales."""
    plain = {name: weight.detach().to("cpu").contiguous() for name, weight in weights.items()}
    if bits == 8:
        plain = packed(plain)
    return {name: _halved(tensor) for name, tensor in plain.items()}


def _halved(tensor: Tensor) -> Tensor:
    """float32 as bfloat16: neither scales nor tables."""
    return tensor.to(torch.bfloat16) if tensor.dtype == torch.float32 else tensor


def bits_of(tensors: Mapping[str, Tensor]) -> int:
    """Those with which `stored` made them."""
    return 8 if any(name.endswith(SCALE) for name in tensors) else 16


def as_read(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `stored` made, float32, as whoever loads it reads it."""
    return {name: tensor.float() for name, tensor in unpacked(tensors).items()}


def write_drafter(
    tensors: dict[str, Tensor],
    spec: BlockSpec | Eagle3Spec,
    record: TrainingRecord,
    figures: Mapping[str, Mapping[int, Figures]],
    out: Path,
) -> None:
    """Write the folder of `stored` tensors, whose figures these are. Checksums come last."""
    out.mkdir(parents=True, exist_ok=True)
    _write_json(out / "config.json", config_json(spec, record.num_anchors, max_gap=record.max_gap))
    held_out = {
        domain: {f"gap {gap}": _plain(found) for gap, found in by_gap.items()}
        for domain, by_gap in figures.items()
    }
    _write_json(out / FIGURES, record.beside({"held_out": held_out}))
    (out / "README.md").write_text(card(spec, bits_of(tensors), record, figures))
    temporary = out / "model.safetensors.tmp"
    save_file(tensors, temporary, metadata={"format": "pt"})
    temporary.chmod(0o644)
    os.replace(temporary, out / "model.safetensors")
    write_checksums(out)


def card(
    spec: BlockSpec | Eagle3Spec,
    bits: int,
    record: TrainingRecord,
    figures: Mapping[str, Mapping[int, Figures]],
) -> str:
    """The model card; `bits` are those of stored weights."""
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
    if isinstance(spec, BlockSpec) and spec.confidence is not None:
        mean = sum(errors) / len(errors)
        confidence = f"\nUncalibrated confidences miss the acceptance by {mean:.3f} on average.\n"
    return _CARD.format(
        name=_describe(spec), target=record.target, what=_describe_draft(spec),
        layout=", anchor first" if isinstance(spec, BlockSpec) else "",
        layers=", ".join(map(str, spec.feature_layers)), rows=_table(rows), slots=_table(slots),
        confidence=confidence, bits=bits, gap=_describe_gap(record.max_gap),
        provenance=provenance(record),
    )  # fmt: skip


def _describe(spec: BlockSpec | Eagle3Spec) -> str:
    if isinstance(spec, Eagle3Spec):
        return f"EAGLE-3 drafter, unrolled over {spec.gamma} steps"
    count = spec.decoder.num_layers
    layers = f"{count} layer{'s' if count > 1 else ''}"
    if spec.markov is None and spec.confidence is None:
        return f"DFlash drafter, {layers}"
    parts = [layers]
    if spec.markov is not None:
        parts.append(f"{spec.markov.kind.value} Markov head of rank {spec.markov.rank}")
    if spec.confidence is not None:
        parts.append("confidence head")
    return "DSpark drafter, " + ", ".join(parts)


def _describe_draft(spec: BlockSpec | Eagle3Spec) -> str:
    some = f", of {spec.draft_vocab_size:,} of its tokens alone," if spec.reduces_vocab else ""
    if isinstance(spec, Eagle3Spec):
        return f"Drafts {spec.gamma} tokens, each by a step of its own{some or ','}"
    return f"Drafts blocks of {spec.gamma} tokens{some}"


def _describe_gap(max_gap: int) -> str:
    if not max_gap:
        return "Trained with the features of every token before the anchor"
    return f"Trained with up to {max_gap} tokens before the anchor whose features are missing"


def _plain(figures: Figures) -> dict[str, object]:
    content = {name: value for name, value in asdict(figures).items() if value == value}
    return {name: _round(value) for name, value in content.items()}


def _round(value: float | list[float]) -> object:
    if isinstance(value, list):
        # Slots that no held-out block reaches have no acceptance; JSON has no NaN.
        return [round(v, 4) if v == v else None for v in value]
    return round(value, 4)


def _table(rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


_CARD = """\
# {name}

{what} for the target `{target}`, from the residuals of its layers
{layers}. In DeepSpec's checkpoint format{layout}; embeddings and output head are the
target's and not stored here. {gap}.

## Held-out figures

Expected tokens a round, the next token included, under rejection sampling at temperature 1, along
text that training never saw; domains called `self-...` were continued by the target itself.
Columns: how many tokens before the anchor lack features.

{rows}

Acceptance of each slot, given that those before it were accepted, without a gap:

{slots}
{confidence}
Of the stored weights of {bits} bits. Figures also in `held_out.json`; file hashes
in `SHA256SUMS` (`sha256sum -c SHA256SUMS`).

{provenance}"""
