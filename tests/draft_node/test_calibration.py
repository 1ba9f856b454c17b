"""The figures and fits of calibration, on the reference case and on data made to be repaired."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from draft_node.calibration.collect import Samples
from draft_node.calibration.fit import GRID, figures, fit, fit_temperatures, fitted_half, mean_ece
from draft_node.calibration.metrics import (
    auroc,
    bins,
    expected_calibration_error,
    measure,
    sigmoid,
    survivals,
)
from draft_node.calibration.texts import Prompt, Text
from specserve.drafters.probs_confidence import (
    ConfidenceModel,
    FeatureRecorder,
    FittedConfidence,
    confidence_features,
    fit_confidence_model,
)
from tests.golden import FIXTURES, main, run_case

CASE = FIXTURES / "confidence_metrics"


def test_figures_and_temperatures_are_those_of_the_reference():
    comparisons = run_case(CASE)
    assert [item for item in comparisons if not item.passed] == []
    figures_of_the_case = {item.name.partition(".")[0] for item in comparisons}
    assert figures_of_the_case == {"expected", "summary", "reliability", "sts"}


def test_a_planted_error_in_any_figure_fails_the_reference_case(tmp_path, capsys):
    case = shutil.copytree(CASE, tmp_path / "case")
    tensors = load_file(case / "io.safetensors")
    tensors["expected.auc"][3] += 1e-6
    tensors["sts.temperatures"][2] += 0.05
    tensors["invented"] = np.zeros(2)
    save_file(tensors, case / "io.safetensors")
    written = json.loads((case / "expected.json").read_bytes())
    written["summary"]["ece_mean"] += 1e-6
    written["per_position"][5]["reliability"].pop()
    (case / "expected.json").write_text(json.dumps(written))

    assert main([str(case)]) == 1
    failed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if "FAILED" in line}
    bins_of_one = {f"reliability.5.{name}" for name in ("avg_pred", "avg_target", "weight")}
    figures_alone = {"expected.auc", "sts.temperatures", "summary.ece_mean", "invented"}
    assert failed == bins_of_one | figures_alone


def chained(num_rows: int, temperatures: np.ndarray, seed: int = 0) -> tuple:
    """Logits that are `temperatures` times too large, and prefixes accepted by chance."""
    rng = np.random.default_rng(seed)
    true_logits = rng.normal(1.0, 1.5, (num_rows, len(temperatures)))
    accepted = rng.random(true_logits.shape) < sigmoid(true_logits)
    return true_logits * temperatures, accepted.cumprod(axis=1).astype(np.float64)


@pytest.mark.slow
def test_scaling_recovers_the_temperatures_of_overconfident_logits():
    truth = np.array([2.0, 1.0, 2.5, 0.5, 1.5])
    logits, targets = chained(40_000, truth)
    counted = np.ones(logits.shape, dtype=bool)
    temperatures = fit_temperatures(logits, targets, counted)
    np.testing.assert_allclose(temperatures, truth, rtol=0.12)

    logits, targets = chained(40_000, truth, seed=1)
    errors = {}
    for name, scale in (("before", np.ones(5)), ("after", temperatures)):
        predicted = survivals(logits, scale)
        errors[name] = [expected_calibration_error(predicted[:, k], targets[:, k]) for k in (0, 2)]
    assert min(errors["before"]) > 0.04
    assert max(errors["after"]) < 0.02


def test_positions_beyond_those_fitted_take_the_last_temperature():
    logits = np.full((2, 4), 1.5)
    longer = survivals(logits, np.array([1.0, 2.0]))
    assert np.array_equal(longer, survivals(logits, np.array([1.0, 2.0, 2.0, 2.0])))
    assert np.array_equal(longer[:, :1], survivals(logits[:, :1], np.array([1.0, 2.0])))


def test_a_position_without_samples_keeps_its_confidences():
    logits, targets = chained(100, np.ones(3))
    counted = np.ones(logits.shape, dtype=bool)
    counted[:, 2] = False
    assert fit_temperatures(logits, targets, counted)[2] == 1.0
    assert 1.0 in GRID


@pytest.mark.slow
def test_probabilities_as_targets_give_the_mean_over_their_outcomes():
    rng = np.random.default_rng(0)
    predictions, chances = rng.random(50), rng.random(50)
    outcomes = (rng.random((4000, 50)) < chances).astype(np.float64)
    soft = measure(predictions, chances)
    assert soft.brier == pytest.approx(
        np.mean([measure(predictions, hard).brier for hard in outcomes]), abs=2e-3
    )
    assert soft.mean_target == pytest.approx(outcomes.mean(), abs=2e-3)
    assert soft.ece <= np.mean([measure(predictions, hard).ece for hard in outcomes])


def test_auroc_counts_pairs_and_needs_both_outcomes():
    predictions = np.array([0.1, 0.4, 0.4, 0.8])
    assert auroc(predictions, np.array([0.0, 0.0, 1.0, 1.0])) == pytest.approx(3.5 / 4)
    assert auroc(predictions, np.ones(4)) is None
    with pytest.raises(ValueError, match="nothing to measure"):
        measure(np.zeros(0), np.zeros(0))


def test_bins_leave_out_what_nothing_was_predicted_at():
    found = bins(np.array([0.01, 0.03, 0.99, 1.0]), np.array([0.0, 1.0, 1.0, 1.0]))
    np.testing.assert_allclose(found.predictions, [0.02, 0.995])
    np.testing.assert_allclose(found.targets, [0.5, 1.0])
    np.testing.assert_allclose(found.counts, [2, 2])


def test_the_model_of_distributions_recovers_its_coefficients():
    rng = np.random.default_rng(0)
    features = np.stack(
        [-rng.exponential(1.0, (20_000, 3)), rng.exponential(2.0, (20_000, 3))], axis=2
    )
    truth = ConfidenceModel(log_max_prob=0.8, entropy=-0.4, biases=[2.0, 1.0, 0.5])
    targets = sigmoid(truth.logits(features))
    weights = np.ones(targets.shape)
    # What never counts may be anything.
    targets[:5000], weights[:5000] = 1.0, 0.0
    found = fit_confidence_model(features, targets, weights)
    assert found.log_max_prob == pytest.approx(0.8, abs=0.02)
    assert found.entropy == pytest.approx(-0.4, abs=0.02)
    np.testing.assert_allclose(found.biases, truth.biases, atol=0.03)


def test_probs_confidences_are_the_models_slot_by_slot_and_before_any_draw():
    logits = torch.randn(2, 4, 30) * 3
    logits[0, 0, 5] = -torch.inf
    features = confidence_features(logits)
    probs = logits.softmax(-1)
    torch.testing.assert_close(features[..., 0], probs.amax(-1).log())
    torch.testing.assert_close(features[..., 1], torch.special.entr(probs).sum(-1))

    model = ConfidenceModel(log_max_prob=0.7, entropy=-0.3, biases=[1.0, 0.5])
    temperatures = [2.0, 0.5]
    confidence = FittedConfidence.of(model, temperatures, torch.device("cpu"))
    raw = torch.from_numpy(model.logits(features.double().numpy()))
    # Slots beyond those that were fitted are like the last of them.
    expected = (raw / torch.tensor([2.0, 0.5, 0.5, 0.5])).sigmoid().float()
    torch.testing.assert_close(confidence(0, logits), expected)
    parts = [confidence(slot, logits[:, slot : slot + 1]) for slot in range(4)]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected)


def test_a_recorder_keeps_what_it_was_shown_block_by_block():
    recorder, logits = FeatureRecorder(), torch.randn(3, 2, 20)
    whole = recorder(0, logits)
    torch.testing.assert_close(whole, logits.softmax(-1).amax(-1))
    torch.testing.assert_close(recorder.take(), confidence_features(logits))
    recorder(0, logits[:, :1])
    recorder(1, logits[:, 1:])
    torch.testing.assert_close(recorder.take(), confidence_features(logits))


def drawn_samples(num_rows: int, seed: int, head: bool) -> Samples:
    """Blocks whose acceptance follows their distributions, while the drafter is twice too sure."""
    rng = np.random.default_rng(seed)
    features = np.stack([-rng.exponential(0.8, (num_rows, 4)), rng.random((num_rows, 4))], axis=2)
    truth = ConfidenceModel(log_max_prob=1.5, entropy=-1.0, biases=[2.0, 1.5, 1.0, 0.5])
    logits = truth.logits(features)
    chances = sigmoid(logits)
    return Samples(
        texts=np.arange(num_rows) % 10,
        logits=2 * logits if head else features[..., 0],
        features=None if head else features,
        stands=(rng.random(chances.shape) < chances).astype(np.float64),
        expected=chances,
        lengths=rng.integers(1, 5, num_rows),
    )


@pytest.mark.parametrize("head", [True, False], ids=["confidence head", "distributions alone"])
def test_a_fit_repairs_blocks_it_has_not_seen(head):
    fitted, unseen = fit(drawn_samples(4000, 0, head)), drawn_samples(4000, 1, head)
    assert (fitted.confidence_model is None) is head
    before = figures(survivals(unseen.logits), unseen)
    after = figures(fitted.survivals(unseen), unseen)
    assert [f.num_samples for f in after] == list(unseen.counted.sum(axis=0))
    assert mean_ece(before) > 0.05
    assert mean_ece(after) < 0.02
    assert all(new.brier < old.brier for old, new in zip(before, after, strict=True))


def test_samples_know_how_far_blocks_survive():
    stands = np.array([[1.0, 0.5, 1.0], [0.0, 1.0, 1.0]])
    expected = np.array([[0.9, 0.6, 0.8], [0.7, 0.2, 0.1]])
    samples = Samples(np.array([0, 3]), stands * 0, None, stands, expected, np.array([3, 2]))
    np.testing.assert_allclose(samples.reached, [[1, 1, 0.5], [1, 0, 0]])
    np.testing.assert_allclose(samples.survived, [[0.9, 0.6, 0.4], [0.7, 0, 0]])
    assert samples.accept_len == pytest.approx(1 + (1.9 + 0.7) / 2)
    assert list(samples.of_texts(np.array([False, True, True, True])).lengths) == [2]


def test_every_other_text_of_a_domain_is_fitted():
    texts = [Text(Prompt(domain, (1,)), (1, 2), 0) for domain in ("a", "b", "a", "a", "b")]
    assert fitted_half(texts).tolist() == [True, True, False, True, False]
