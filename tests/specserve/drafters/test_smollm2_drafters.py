"""The drafters that come along for SmolLM2: complete, small, in 8 bits, made for that model."""

from pathlib import Path

import pytest
import torch

from draft_node.training import export
from specserve.drafters.load import load_drafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.drafters.stored_calibration import find_calibration
from specserve.drafters.weights import TargetWeights
from specserve.models.checkpoint import Checkpoint
from specserve.models.scaled_bytes import DTYPE
from specserve.sampling.draft_sampler import Greedy
from specserve.settings.drafter_source import SMOLLM2_DRAFTERS
from specserve.settings.target_source import find_smollm2
from tests.specserve.drafters.checkpoints import options

NAMES = ["dspark", "lm"]
MAX_BYTES = 24 * 2**20  # of all together


def test_the_two_best_are_there_and_small():
    assert sorted(path.name for path in SMOLLM2_DRAFTERS.iterdir()) == ["NOTICE", *NAMES]
    files = [path for path in SMOLLM2_DRAFTERS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_folders_match_their_checksums(name: str):
    folder = SMOLLM2_DRAFTERS / name
    lines = (folder / export.CHECKSUMS).read_text().splitlines()
    listed = {file: value for value, file in (line.split("  ") for line in lines)}
    assert set(listed) == {path.name for path in folder.iterdir()} - {export.CHECKSUMS}
    assert all(export.sha256(folder / file) == value for file, value in listed.items())


@pytest.mark.parametrize("name", NAMES)
def test_their_matrices_are_bytes_with_scales(name: str):
    with Checkpoint(SMOLLM2_DRAFTERS / name) as checkpoint:
        assert checkpoint.first_matrix_beyond([DTYPE]) is None


@pytest.mark.parametrize("name", NAMES)
def test_cards_say_whose_they_are_and_how_they_are_made(name: str):
    card = (SMOLLM2_DRAFTERS / name / "README.md").read_text()
    assert "derived from `SmolLM2-135M-Instruct" in card
    assert "licence apache-2.0" in card
    assert "PSF-2.0" in card
    assert f"    specserve train {name} " in card
    assert (SMOLLM2_DRAFTERS / name / "curve.csv").is_file()


@pytest.fixture(scope="module")
def smollm2() -> Path:
    found = find_smollm2()
    if found is None:
        pytest.skip("SmolLM2 is not installed")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_calibration_that_ships_is_used(smollm2: Path, name: str, caplog):
    assert find_calibration([SMOLLM2_DRAFTERS / name], smollm2) is not None
    assert not caplog.records


@pytest.mark.slow
def test_each_drafts_for_smollm2(smollm2: Path):
    target = TargetWeights.of(smollm2)
    for name in NAMES:
        drafter = load_drafter(SMOLLM2_DRAFTERS / name, target, options(max_positions=512))
        features = torch.randn(3, drafter.feature_size) if drafter.features else None
        drafter.extend(ContextUpdate([0], [0], [3], torch.tensor([300, 301, 302]), features))
        drawn = drafter.draft(DraftBatch([0], torch.tensor([303])), Greedy())
        assert drawn.token_ids.shape == (1, drafter.gamma)
        assert name != "dspark" or drawn.confidences is not None
