"""The bare model of bench.engine on a device: nothing of it stays on the CPU."""

import os
from pathlib import Path

import pytest

from bench.records import ForwardJob, RoundJob, Setup
from tests.device.pretended import PretendedCuda

TARGET = Path(__file__).parents[1] / "fixtures" / "golden" / "target_qwen3_untied"


def setup(device: str) -> Setup:
    return Setup(
        folder=str(TARGET),
        parent_pid=os.getpid(),
        cores=(),
        device=device,
        ballast=200_000,
        deterministic=False,
        num_blocks=64,
    )


@pytest.mark.slow
def test_bare_forwards_and_rounds(cuda: PretendedCuda):
    from bench.bare import Bare

    bare = Bare(setup("cuda"))
    steps = bare(ForwardJob(prompt_lens=[5, 19], num_tokens=4))
    assert len(steps.steps_s) == 3
    assert bare(ForwardJob(prompt_lens=[5, 19], num_tokens=1)).prompt_s > 0
    assert cuda.num_operations > 0
    rounds = bare(RoundJob(prompt_lens=[5, 19], num_tokens=6))
    assert rounds.num_rounds >= 4
