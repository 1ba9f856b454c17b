"""Writes a distilled decoder as a Hugging Face folder with its target's tokenizer."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from draft_node.training.block_export import bits_of
from draft_node.training.draft_vocabulary import tables
from draft_node.training.export import copy_tokenizer, hf_config, write_checksums
from draft_node.training.language_model_distilled import DistilledDecoder
from draft_node.training.provenance import FIGURES, RunRecord, provenance
from specserve.drafters.dialects import OWN_KEY


def write_language_model(
    model: DistilledDecoder,
    tensors: dict[str, Tensor],
    record: RunRecord,
    figures: Mapping[str, float],
    out: Path,
) -> None:
    """Write the folder of `stored` tensors; `figures` are those of `DistilledDecoder.evaluate`.

    A part of a target has no tokenizer of its own. Checksums come last.
    """
    out.mkdir(parents=True, exist_ok=True)
    if model.owns_embeddings:
        copy_tokenizer(model.target.folder, out)
    _write_json(out / "config.json", config_json(model))
    kept = {name: round(value, 4) for name, value in figures.items()}
    _write_json(out / FIGURES, record.beside({"held_out": kept}))
    (out / "README.md").write_text(_card(model, bits_of(tensors), record, kept))
    if model.vocabulary.ids is not None:
        tensors = tensors | tables(model.vocabulary.ids, model.config.vocab_size)
    temporary = out / "model.safetensors.tmp"
    save_file(tensors, temporary, metadata={"format": "pt"})
    temporary.chmod(0o644)
    os.replace(temporary, out / "model.safetensors")
    write_checksums(out)


def config_json(model: DistilledDecoder) -> dict[str, object]:
    """Of a Qwen3 or a Llama, and under a key of ours what it leaves to its target."""
    end_ids = model.target.spec.eos_token_ids
    end_id = end_ids[0] if end_ids else 0
    config = hf_config(model.config, end_id, end_id)
    if model.owns_embeddings:
        return config
    ids = model.vocabulary.ids
    size = {} if ids is None else {"draft_vocab_size": len(ids)}
    return config | {OWN_KEY: {"target_embeddings": True} | size}


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def _card(
    model: DistilledDecoder, bits: int, record: RunRecord, figures: Mapping[str, float]
) -> str:
    shape, ids = model.config, model.vocabulary.ids
    alone = _COMPLETE if bits == 16 else _IN_BYTES
    rows = [f"| {name} | {value:.3f} |" for name, value in figures.items()]
    drafted = "" if ids is None else f" It drafts {len(ids):,} of the tokens alone."
    return _CARD.format(
        architecture="Qwen3" if shape.qk_norm else "Llama",
        params=sum(weight.numel() for weight in model.parameters()) / 1e6, bits=bits,
        layers=shape.num_hidden_layers, hidden=shape.hidden_size, target=record.target,
        loading=(alone if model.owns_embeddings else _PART) + drafted,
        rows="\n".join(rows), provenance=provenance(record),
    )  # fmt: skip


_COMPLETE = "Loads\nwith `transformers` as it stands."
_IN_BYTES = "Its\nmatrices are bytes with scales, which `specserve` reads."
_PART = "Its\nembedding and output head are the target's, beside which alone it loads."
_CARD = """\
# A standalone language model as a drafter

A {architecture}-architecture model of {params:.2f}M parameters ({layers} layers, width {hidden})
with the vocabulary of the target `{target}`, whose distributions it was trained to have. {loading}

Held-out nats a token, of those that it drafts, and the mean overlap of its distribution with the
target's at temperature 1 (the share of drafted tokens that would stand), of the stored weights
of {bits} bits:

| held-out text | |
| --- | --- |
{rows}

{provenance}"""
