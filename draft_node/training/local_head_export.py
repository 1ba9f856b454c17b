"""Writes a trained local head as a folder: weights and unigram counts, configuration, card."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from draft_node.training.export import write_checksums
from draft_node.training.provenance import FIGURES, RunRecord, provenance
from specserve.drafters.local_head import DEFAULT_WEIGHT, UNIGRAM_COUNTS
from specserve.drafters.spec import LocalHeadSpec


@dataclass(frozen=True, kw_only=True)
class HeadRecord(RunRecord):
    """What the card says about the run."""

    fused_with: str | None = None  # the DFlash with which alpha and beta were chosen


def config_json(spec: LocalHeadSpec) -> dict[str, object]:
    """config.json in the published heads' keys, and alpha and beta if the head has its own."""
    config: dict[str, object] = {
        "vocab_size": spec.vocab_size,
        "embed_dim": spec.embed_dim,
        "gru_hidden_dim": spec.hidden_dim,
        "low_rank_dim": spec.rank,
        "lm_head_mode": "target_lm_head" if spec.through_target_head else "low_rank",
        "rank_activation": "silu" if spec.silu else "identity",
        "pure_draft_prefix_len": 1,
        "shift_label": False,
    }
    weights = {"alpha": spec.alpha, "beta": spec.beta}
    return config | {name: value for name, value in weights.items() if value is not None}


def write_head(
    weights: Mapping[str, Tensor],
    counts: Tensor,
    spec: LocalHeadSpec,
    record: HeadRecord,
    figures: Mapping[str, list[float]],
    out: Path,
) -> None:
    """Write the folder. `counts` [V] int64; `figures` are nats of each slot by domain."""
    out.mkdir(parents=True, exist_ok=True)
    write_config(spec, out)
    rounded = {
        name: w.detach().to("cpu", torch.bfloat16).contiguous() for name, w in weights.items()
    }
    temporary = out / "model.safetensors.tmp"
    save_file({**rounded, UNIGRAM_COUNTS: counts.contiguous()}, temporary, {"format": "pt"})
    temporary.chmod(0o644)
    os.replace(temporary, out / "model.safetensors")
    rows = {domain: [round(value, 4) for value in slots] for domain, slots in figures.items()}
    _write_json(out / FIGURES, record.beside({"nats_by_slot": rows}))
    (out / "README.md").write_text(_card(spec, record, rows))
    write_checksums(out)


def write_config(spec: LocalHeadSpec, out: Path) -> None:
    """config.json alone, such as after alpha and beta were chosen."""
    _write_json(out / "config.json", config_json(spec))


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def _card(spec: LocalHeadSpec, record: HeadRecord, figures: Mapping[str, list[float]]) -> str:
    slots = range(2, 2 + max(map(len, figures.values())))
    table = [["held-out text", *map(str, slots)], ["---"] * (len(slots) + 1)]
    table += [[domain, *(f"{value:.2f}" for value in row)] for domain, row in figures.items()]
    alpha, beta = (DEFAULT_WEIGHT if w is None else w for w in (spec.alpha, spec.beta))
    chosen = "the paper's values" if record.fused_with is None else f"for {record.fused_with}"
    kind = f"a GRU of width {spec.hidden_dim}" if spec.hidden_dim else "a Markov head"
    return _CARD.format(
        kind=kind, rank=spec.rank, target=record.target, alpha=alpha, beta=beta, chosen=chosen,
        table="\n".join("| " + " | ".join(row) + " |" for row in table),
        provenance=provenance(record),
    )  # fmt: skip


_CARD = """\
# Local head

A DeLS-Spec head: {kind}, rank {rank}, for any DFlash of the target `{target}`. It sees the drafted
tokens of a block and nothing before them. Added with alpha {alpha:g} and beta {beta:g} ({chosen}).

Held-out nats a token by slot of the block, of the stored bfloat16 weights:

{table}

{provenance}"""
