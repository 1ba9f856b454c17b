"""The drafters as shipped: complete, small, made for the target beside them."""

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
from specserve.settings.drafter_source import EMBEDDED_DRAFTERS, SMOLLM2_DRAFTERS, shipped_drafters
from specserve.settings.target_source import EMBEDDED_TARGET
from tests.specserve.drafters.checkpoints import options

MAX_BYTES = 16e6  # of the embedded target, its drafters, and what is no model


def test_what_is_embedded_is_small():
    files = [path for path in EMBEDDED_TARGET.parent.rglob("*") if path.is_file()]
    own = [path for path in files if SMOLLM2_DRAFTERS not in path.parents]
    assert sum(path.stat().st_size for path in own) < MAX_BYTES


def test_a_drafter_of_either_kind_is_there():
    assert list(shipped_drafters(EMBEDDED_TARGET)) == ["dspark", "lm"]


def test_folders_match_their_checksums():
    for name, folder in shipped_drafters(EMBEDDED_TARGET).items():
        lines = (folder / export.CHECKSUMS).read_text().splitlines()
        listed = {file: value for value, file in (line.split("  ") for line in lines)}
        assert set(listed) == {path.name for path in folder.iterdir()} - {export.CHECKSUMS}
        assert all(export.sha256(folder / file) == value for file, value in listed.items()), name


def test_their_matrices_are_bytes_with_scales():
    for folder in shipped_drafters(EMBEDDED_TARGET).values():
        with Checkpoint(folder) as checkpoint:
            assert checkpoint.first_matrix_beyond([DTYPE]) is None


@pytest.mark.slow
def test_each_drafts_for_the_embedded_target():
    target = TargetWeights.of(EMBEDDED_TARGET)
    for name, folder in shipped_drafters(EMBEDDED_TARGET).items():
        drafter = load_drafter(folder, target, options(max_positions=2048))
        features = torch.randn(3, drafter.feature_size) if drafter.features else None
        token_ids = torch.tensor([300, 301, 302])
        drafter.extend(ContextUpdate([0], [0], [3], token_ids, features))
        drawn = drafter.draft(DraftBatch([0], torch.tensor([303])), Greedy())
        assert drawn.token_ids.shape == (1, drafter.gamma)
        assert name != "dspark" or drawn.confidences is not None


@pytest.mark.parametrize("name", ["lm", "dspark"])
def test_a_calibration_that_ships_is_used(name, caplog):
    """Whatever its fields are called in code, files keep the names they were written with."""
    found = find_calibration([EMBEDDED_DRAFTERS / name], EMBEDDED_TARGET)
    assert found is not None
    assert found.method == "foreseeable"
    assert not caplog.records
