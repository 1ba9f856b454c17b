"""A target, prompts of two domains, and jobs of `specserve calibrate` on them."""

import json
import os
from pathlib import Path

from specserve.commands.calibrate import Job
from tests.draft_node.training.drafters import write_target


def write_inputs(folder: Path) -> Path:
    """A random target with a tokenizer, and four prompts of each domain."""
    write_target(folder / "target")
    (folder / "prompts").mkdir()
    for domain in ("code", "prose"):
        lines = [json.dumps({"text": f"def {domain}(text): return {i}"}) for i in range(4)]
        (folder / "prompts" / f"{domain}.jsonl").write_text("\n".join(lines))
    return folder


def make_job(folder: Path, drafter: Path, **changes) -> Job:
    """Of what `write_inputs` has written, for a drafter that need not be there."""
    settings = {
        "target": folder / "target", "drafter": drafter, "local_head": None,
        "prompts": folder / "prompts", "data": None,
        "num_prompts": 8, "speed_prompts": 2, "num_tokens": 12, "stride": 2,
        "temperature": 1.0, "verification": "rejection", "num_kept": 64, "gamma": None,
        "out": drafter, "plot": None, "seed": 0, "threads": 1, "device": "cpu",
        "parent_pid": os.getpid(),
    }  # fmt: skip
    return Job(**{**settings, **changes})
