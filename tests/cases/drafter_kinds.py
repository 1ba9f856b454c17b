"""A drafter of every kind for the tiny model."""

import json
from pathlib import Path

from specserve.settings.target_source import EMBEDDED_TARGET
from tests.specserve.drafters.checkpoints import EAGLE3, write_drafter

KINDS = ("dspark", "dflash", "eagle3", "lm", "ngram")


def folder_of(kind: str, folder: Path) -> str:
    """What `--drafter` takes: a name, or of EAGLE-3, of which none is embedded, random weights."""
    if kind != "eagle3":
        return kind
    target = json.loads((EMBEDDED_TARGET / "config.json").read_text())
    shape = ("vocab_size", "hidden_size", "max_position_embeddings")
    changes = {name: target[name] for name in shape}
    return str(
        write_drafter(
            folder / kind,
            EAGLE3,
            **changes,
            intermediate_size=64,
            num_target_layers=target["num_hidden_layers"],
        )
    )
