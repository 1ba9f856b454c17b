"""What a service believes of a drafter before it has seen any of its blocks."""

import msgspec
import pytest

from specserve.drafters import stored_calibration, usual_acceptance
from specserve.drafters.stored_calibration import FILE_NAME, Calibration, Evaluation
from specserve.drafters.usual_acceptance import UsualAcceptance
from specserve.settings.config import SpeculationConfig


def test_survivals_become_what_stands_once_the_tokens_before_do():
    usual = UsualAcceptance({"greedy": [0.8, 0.4, 0.1]})
    assert usual.of("greedy", 3) == pytest.approx([0.8, 0.5, 0.25])
    assert usual.of("greedy", 2) == pytest.approx([0.8, 0.5])
    assert usual.of("greedy", 5) == pytest.approx([0.8, 0.5, 0.25, 0.25, 0.25])


@pytest.mark.parametrize(
    ("known", "wanted", "like"),
    [
        (["greedy", "rejection"], "foreseeable", "rejection"),
        (["greedy", "foreseeable"], "rejection", "foreseeable"),
        (["greedy"], "coupled", "greedy"),
        ([], "coupled", None),
    ],
)
def test_a_kind_that_nobody_measured_is_like_the_nearest(known, wanted, like):
    survivals = {kind: [0.1 * (1 + place)] for place, kind in enumerate(["greedy", *known], 1)}
    usual = UsualAcceptance({kind: survivals[kind] for kind in known}, unknown=0.7)
    assert usual.of(wanted, 1) == pytest.approx([0.7 if like is None else survivals[like][0]])


def test_positions_that_hardly_a_block_reached_are_neither_sure_nor_hopeless():
    usual = UsualAcceptance({"greedy": [1.0, 0.0, 0.0]})
    assert usual.of("greedy", 3) == [0.98, 0.02, 0.02]


def test_a_texts_own_repetitions_are_rare():
    usual = usual_acceptance.usual_acceptance(SpeculationConfig(), "ngram", "any")
    assert usual.coverage < 0.5 < usual.of("greedy", 1)[0]


def stored(folder, **fields):
    nothing = Evaluation(before=[], after=[])
    calibration = Calibration(
        drafter_hash="d", target_hash="t", method="foreseeable", temperature=1.0, num_texts=2,
        num_blocks=2, temperatures=[1.0], evaluation=nothing, **fields,
    )  # fmt: skip
    (folder / FILE_NAME).write_bytes(msgspec.json.encode(calibration))


def test_what_calibrate_stored_is_read_and_of_another_target_is_not(tmp_path, monkeypatch):
    stored(tmp_path, acceptance={"greedy": [0.9], "foreseeable": [0.6]})
    speculation = SpeculationConfig(drafter=str(tmp_path))
    monkeypatch.setattr(
        stored_calibration, "weights_hash", lambda models: "d" if models == [tmp_path] else "t"
    )
    usual = usual_acceptance.usual_acceptance(speculation, str(tmp_path), tmp_path / "t")
    assert (usual.of("greedy", 1), usual.of("rejection", 1)) == ([0.9], [0.6])
    monkeypatch.setattr(stored_calibration, "weights_hash", lambda models: "another")
    monkeypatch.setattr(usual_acceptance, "read_draft_spec", lambda folder: None)  # no chain
    usual = usual_acceptance.usual_acceptance(speculation, str(tmp_path), tmp_path / "t")
    assert usual.of("greedy", 1) == [0.55]
