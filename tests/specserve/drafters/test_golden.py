import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from specserve.drafters import backbone, dspark, markov_head
from tests.golden import FIXTURES, main, run_case

DRAFT_CASES = (
    "dels_local_head",
    "dflash_deepspec_b7",
    "dflash_zlab_b16",
    "dspark_gemma4_b4_draftonly",
    "dspark_qwen3_conf_nomarkov_b6_bf16",
    "dspark_qwen3_gated_b4",
    "dspark_qwen3_vanilla_b7",
    "eagle3_deepspec_ttt7",
    "sglang_eagle3_midlayer",
    "speculators_dspark_anchor_n4",
    "speculators_eagle31_fc_norm",
    "speculators_eagle3_llama",
    "speculators_eagle3_qwen3_normed",
    pytest.param("train_step_dspark", marks=pytest.mark.slow),
)


@pytest.mark.parametrize("name", DRAFT_CASES)
def test_every_tensor_of_the_reference_is_reproduced(name):
    comparisons = run_case(FIXTURES / name)

    assert [item for item in comparisons if not item.passed] == []
    assert len(comparisons) > len(load_file(FIXTURES / name / "io.safetensors")) // 2


def test_a_planted_error_in_a_later_round_fails_the_case(tmp_path, capsys):
    case = shutil.copytree(FIXTURES / "dspark_qwen3_vanilla_b7", tmp_path / "case")
    tensors = load_file(case / "io.safetensors")
    metadata = {"target": "target_qwen3_untied"}
    tensors["r4.base_logits"][2, 5] += 1e-3
    tensors["r3.greedy_ids"][1] ^= 1
    tensors["invented"] = torch.zeros(2)
    save_file(tensors, case / "io.safetensors", metadata=metadata)

    assert main([str(case)]) == 1
    failed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if "FAILED" in line}
    assert failed == {"r3.greedy_ids", "r4.base_logits", "invented"}


def test_features_off_by_one_layer_fail_the_case(monkeypatch):
    load = dspark.load_backbone

    def shifted(weights, spec, max_positions):
        layers = tuple(layer + 1 for layer in spec.feature_layers)
        return load(weights, replace(spec, feature_layers=layers), max_positions)

    monkeypatch.setattr(dspark, "load_backbone", shifted)
    failed = [c.name for c in run_case(FIXTURES / "dspark_qwen3_gated_b4") if not c.passed]
    assert {"r1.new_ctx_features", "r1.h", "target_layer_ids"} <= set(failed)


def test_context_entries_off_by_one_position_fail_the_case(monkeypatch):
    entries = backbone.Backbone.context_entries
    monkeypatch.setattr(
        backbone.Backbone,
        "context_entries",
        lambda self, c, positions: entries(self, c, positions + 1),
    )
    failed = [c.name for c in run_case(FIXTURES / "dspark_qwen3_vanilla_b7") if not c.passed]
    assert {"r1.kv.0.k", "r1.h", "r4.h"} <= set(failed)
    assert "r1.kv.0.v" not in failed


def test_a_markov_head_that_reads_the_wrong_token_fails_the_case(monkeypatch):
    logits = markov_head.VanillaHead._Run.logits
    monkeypatch.setattr(
        markov_head.VanillaHead._Run,
        "logits",
        lambda self, slot, previous_ids: logits(self, slot, previous_ids * 0),
    )
    failed = [c.name for c in run_case(FIXTURES / "dspark_qwen3_vanilla_b7") if not c.passed]
    assert "r1.forced_logits" in failed
    assert "r1.base_logits" not in failed


def test_tensors_of_no_known_case_exit_with_two(tmp_path, capsys):
    save_file({"loss": torch.zeros(1)}, tmp_path / "io.safetensors")

    assert main([str(tmp_path)]) == 2
    assert "neither a training step" in capsys.readouterr().err
