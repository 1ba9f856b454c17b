"""Checkpoints that were damaged: each is one line that names the file and the way out."""

import json
import math
from collections.abc import Callable

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from draft_node.training import checkpoint
from specserve.errors import Unsupported
from tests.draft_node.training.test_trainer import SCHEDULE, make_trainer

TABLE, NORM = "model/model.embed_tokens.weight", "optimizer/model.norm.weight"
MOMENTUM = "optimizer/model.layers.0.mlp.up_proj.weight/momentum_buffer"
Damage = Callable[[dict, dict, dict], object]  # of tensors, progress and all that is noted


def noted(name: str, value: object) -> Damage:
    return lambda tensors, progress, notes: progress.update({name: value})


def without(name: str, *, is_listed: bool = True) -> Damage:
    def damage(tensors: dict, progress: dict, notes: dict) -> None:
        del tensors[name]
        if not is_listed:  # as it was before tensors were listed
            del notes["tensors"]

    return damage


def cut(name: str) -> Damage:
    return lambda tensors, *_: tensors.update({name: tensors[name][:-1].contiguous()})


def added(name: str) -> Damage:
    return lambda tensors, *_: tensors.update({name: torch.ones(1)})


def filled(name: str, value: float) -> Damage:
    return lambda tensors, *_: tensors[name].view(-1)[-1:].fill_(value)


DAMAGES = [
    ("cannot be read (Expected `int`, got `str` - at `$.step`)", noted("step", "x")),
    ("cannot be read (Expected `int` >= 0 - at `$.step`)", noted("step", -1)),
    ("cannot be read (Expected `int` <= 4294967295 - at `$.step`)", noted("step", 2**40)),
    ("cannot be read (Expected `array`, got `int` - ", noted("recent_step_s", 3)),
    ("no run of 128 tokens is at the rows ", noted("cursors", {"code": 10**12, "prose": 0})),
    ("no run of 128 tokens is at the rows ", noted("cursors", {"code": -5, "prose": 6})),
    ("its streams are ['text'], these ['code', 'prose']", noted("cursors", {"text": 1})),
    (f"tensor {TABLE} is missing", without(TABLE)),
    (f"tensor {TABLE} is missing", without(TABLE, is_listed=False)),
    (f"tensor {MOMENTUM} is missing", without(MOMENTUM)),
    (f"of {NORM} there is exp_avg_sq, step alone", without(f"{NORM}/exp_avg", is_listed=False)),
    (f"tensor {TABLE} has shape [95, 32] instead of [96, 32]", cut(TABLE)),
    (f"tensor {MOMENTUM} has shape [47, 32] instead of [48, 32]", cut(MOMENTUM)),
    (f"tensor {TABLE} holds NaN or infinity", filled(TABLE, math.nan)),
    (f"tensor {NORM}/exp_avg holds NaN or infinity", filled(f"{NORM}/exp_avg", math.inf)),
    ("tensor model/extra is none of this model", added("model/extra")),
]


@pytest.mark.parametrize(("problem", "damage"), DAMAGES)
def test_a_damaged_checkpoint_is_refused_with_the_way_out(problem, damage, tiny, tmp_path):
    trainer = make_trainer(tiny, tmp_path)
    trainer._step(SCHEDULE)
    trainer.save()
    path = tmp_path / checkpoint.FILE_NAME
    with safe_open(path, framework="pt") as file:
        notes = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    progress = json.loads(notes["progress"])
    damage(tensors, progress, notes)
    save_file(tensors, path, {**notes, "progress": json.dumps(progress)})
    with pytest.raises(Unsupported) as refused:
        make_trainer(tiny, tmp_path)
    assert str(refused.value).startswith(f"{path}: {problem}")
    assert str(refused.value).endswith("; --restart forgets it")
