"""Drafters of the kinds that do not ship for the embedded target, with random weights in its shape.

They draft, and next to nothing of it stands.
"""

import json
from pathlib import Path
from typing import Any

from specserve.settings.target_source import EMBEDDED_TARGET
from tests.specserve.drafters.checkpoints import DFLASH, write_drafter, write_head

_SHARED = (
    "vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings", "rope_parameters",
)  # fmt: skip
_RANK, _HIDDEN = 8, 16


def embedded_shape() -> dict[str, Any]:
    """Changes to a configuration that make a small drafter for the embedded target of it."""
    config = json.loads((EMBEDDED_TARGET / "config.json").read_text())
    shape = {name: config[name] for name in _SHARED}
    return {**shape, "intermediate_size": 64, "num_hidden_layers": 1, "num_target_layers": 5,
            "target_layer_ids": [0, 2], "block_size": 4, "mask_token_id": 3}  # fmt: skip


def write_dflash(folder: Path) -> dict[str, str]:
    """The settings of `[speculation]` that name it."""
    return {"drafter": str(write_drafter(folder / "dflash", DFLASH, **embedded_shape()))}


def write_dels(folder: Path) -> dict[str, str]:
    """A DFlash with a local head; the settings that name both."""
    shape = embedded_shape()
    vocab, width = shape["vocab_size"], shape["hidden_size"]
    tensors = {
        "prefix_gru.weight_ih_l0": (3 * _HIDDEN, width),
        "prefix_gru.weight_hh_l0": (3 * _HIDDEN, _HIDDEN),
        "rank_proj.weight": (_RANK, _HIDDEN),
        "low_rank_lm_head.weight": (vocab, _RANK),
    }
    sizes = {"vocab_size": vocab, "embed_dim": width, "gru_hidden_dim": _HIDDEN}
    head = write_head(folder / "dels", tensors, **sizes, low_rank_dim=_RANK)
    return {**write_dflash(folder), "local_head": str(head)}
