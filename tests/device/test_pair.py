"""A target and a draft process on a device: reports, features, blocks and distributions that come
back.
"""

import pytest
import torch

from specserve.sampling.verification.method import VerificationMethod
from target_node.speculation.miss_policy import Miss
from tests.device.pretended import PretendedCuda
from tests.device.test_target import finished
from tests.device.workload import both_kinds
from tests.device.worlds import pair_on_device
from tests.exactness.speculative import Models
from tests.target_node.scripted_drafts import Drafting

IN_TIME = Drafting(draft_batch=4, fan_out=8, pace=(4,))
NAMES = [
    "dspark vanilla",
    "eagle3",
    "language model",
    "dspark gated",
    "dspark rnn",
    "dflash fill in",
    "dflash with a local head",
    "speculators",
    "the target itself",
    "ngram",
]


# Blocks of the others in 16 bits are compared in test_captured_drafts.py.
BRAINY = ["dspark vanilla", "eagle3", "language model", "dflash with a local head"]
BRAINY += ["the target itself", "ngram"]
CASES = [(name, torch.float32) for name in NAMES]
CASES += [(name, torch.bfloat16) for name in BRAINY]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_blocks_of_a_draft_process_are_verified(
    cuda: PretendedCuda, models: Models, name: str, dtype: torch.dtype
):
    settings = {"default_method": VerificationMethod.FORESEEABLE, "miss": Miss.DRAFT_NOW}
    with pair_on_device(models, name, IN_TIME, dtype=dtype, **settings) as pair:
        finished(pair, both_kinds())
        node = pair.drafts[0].node
        assert node is not None
        assert node.prespeculation.failures.total == 0
        assert pair.sampler.num_broken_laws == 0
        assert name == "ngram" or pair.asynchronous.status().num_hits > 2


@pytest.mark.slow
def test_plain_rejection(cuda: PretendedCuda, models: Models):
    drafting = Drafting(draft_batch=8, fan_out=32, pace=(8,))
    settings = {"default_method": VerificationMethod.REJECTION, "miss": Miss.SKIP}
    with pair_on_device(models, "dspark vanilla", drafting, **settings) as pair:
        finished(pair, both_kinds())
        assert pair.sampler.num_broken_laws == 0
        assert pair.asynchronous.status().num_hits > 5


@pytest.mark.slow
def test_any_mode_and_lookups_in_the_row_s_own_text(cuda: PretendedCuda, models: Models):
    with pair_on_device(models, "dspark vanilla", IN_TIME, auto=True) as pair:
        finished(pair, both_kinds(max_tokens=32))
        assert pair.chooser is not None
        assert pair.chooser.num_switches > 5
