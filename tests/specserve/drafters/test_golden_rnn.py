"""Reference cases of DSpark's RNN head: its states are compared, slot by slot.

The case is made here of one with another head: what a block's hidden states are does not depend on
its head, and the head is written out below by its formula, for one block at a time.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.golden import FIXTURES, main, run_case

GATED, RANK, GAMMA, HIDDEN = FIXTURES / "dspark_qwen3_gated_b4", 8, 4, 32
KEPT = ("anchor_id", "anchor_pos", "h", "base_logits", "forced_ids", "forced_prev_ids")


def path_of(weights, hidden, base, anchor_id, forced_ids=None) -> dict[str, torch.Tensor]:
    """Tokens, logits and the head's state after each slot, along a given or the greedy path."""
    state, previous, ids, logits, states = torch.zeros(RANK), anchor_id, [], [], []
    for slot in range(GAMMA):
        e = weights["markov_head.markov_w1.weight"][previous]
        z = torch.cat([state, e, hidden[slot]])
        joint = weights["markov_head.joint_proj.weight"] @ z
        g, c, o = (joint + weights["markov_head.joint_proj.bias"]).chunk(3)
        logits.append(base[slot] + weights["markov_head.markov_w2.weight"] @ o.tanh())
        state = g.sigmoid() * state + (1 - g.sigmoid()) * c.tanh()
        states.append(state)
        previous = int(logits[-1].argmax() if forced_ids is None else forced_ids[slot])
        ids.append(previous)
    stacked = {"logits": torch.stack(logits), "rnn_state": torch.stack(states)}
    return stacked | {"ids": torch.tensor(ids)}


@pytest.fixture
def case(tmp_path) -> Path:
    folder = shutil.copytree(GATED, tmp_path / "case")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "markov_head_type": "rnn"}))
    weights = load_file(folder / "model.safetensors")
    for name in ("weight", "bias"):
        del weights[f"markov_head.gate_proj.{name}"]
    weights["markov_head.joint_proj.weight"] = torch.randn(3 * RANK, 2 * RANK + HIDDEN) / 2
    weights["markov_head.joint_proj.bias"] = torch.randn(3 * RANK) / 2
    save_file(weights, folder / "model.safetensors")

    given = load_file(folder / "io.safetensors")
    made = {"prompt_ids": given["prompt_ids"]}
    made |= {f"r1.{name}": given[f"r1.{name}"] for name in KEPT}
    context = (given["r1.h"], given["r1.base_logits"], int(given["r1.anchor_id"]))
    forced = path_of(weights, *context, given["r1.forced_ids"])
    made |= {f"r1.forced_{name}": forced[name] for name in ("logits", "rnn_state")}
    greedy = path_of(weights, *context)
    made |= {f"r1.greedy_{name}": tensor for name, tensor in greedy.items()}
    save_file(made, folder / "io.safetensors", metadata={"target": "target_qwen3_tied"})
    return folder


def test_the_state_after_each_slot_is_compared(case):
    comparisons = run_case(case)
    assert [item for item in comparisons if not item.passed] == []
    assert {"r1.forced_rnn_state", "r1.greedy_rnn_state"} <= {item.name for item in comparisons}


def planted(case: Path, change) -> set[str]:
    tensors = load_file(case / "io.safetensors")
    tensors["r1.forced_rnn_state"] = change(tensors["r1.forced_rnn_state"])
    save_file(tensors, case / "io.safetensors", metadata={"target": "target_qwen3_tied"})
    return {item.name for item in run_case(case) if not item.passed}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda s: torch.cat([torch.zeros(1, RANK), s[:-1]]), id="before each slot"),
        pytest.param(lambda s: s + 1e-3 * (torch.arange(GAMMA) == 3)[:, None], id="last one off"),
    ],
)
def test_other_states_fail_the_case(case, change):
    assert planted(case, change) == {"r1.forced_rnn_state"}


def test_the_command_says_so(case, capsys):
    assert main([str(case)]) == 0
    told = [s for s in capsys.readouterr().out.splitlines() if s.startswith("r1.forced_rnn_state")]
    assert told
    assert all(line.endswith("ok") for line in told)
