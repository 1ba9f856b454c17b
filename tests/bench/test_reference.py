"""The ballast that transformers gets is that of the service."""

import os
from pathlib import Path

import pytest
import torch

from bench.conversations import load_plainly
from bench.in_process import Engine, EngineSize, Job
from bench.records import GenerateJob, Setup
from specserve.models.ballast import with_ballast
from specserve.models.config import read_spec
from tests.bench.peers.small_gguf import write_small_gguf

TARGET = Path(__file__).parents[1] / "fixtures" / "golden" / "target_qwen3_untied"


def setup(ballast: int) -> Setup:
    return Setup(folder=str(TARGET), parent_pid=os.getpid(), cores=(), ballast=ballast)


@pytest.mark.slow
def test_ballast_in_transformers_has_the_size_of_the_service_s_and_changes_no_logit():
    from bench.reference import load_reference  # imports transformers

    spec = read_spec(TARGET)
    wanted = 2 * spec.num_params
    plain, padded = load_reference(setup(0)), load_reference(setup(wanted))
    num_params = sum(weight.numel() for weight in padded.parameters())
    assert num_params == with_ballast(spec, wanted).num_params
    token_ids = torch.arange(12).reshape(1, 12)
    with torch.inference_mode():
        assert torch.equal(plain(token_ids).logits, padded(token_ids).logits)


@pytest.mark.slow
def test_transformers_reads_a_gguf_file_and_decodes_the_same_text(tmp_path):
    from bench.reference import Reference  # imports transformers

    model, prompt = tmp_path / "small.gguf", list(range(100, 120))
    write_small_gguf(model)
    reference = Reference(Setup(folder=str(model), parent_pid=os.getpid(), cores=()))
    [theirs] = reference(GenerateJob(prompts=[prompt], num_tokens=16)).token_ids
    engine = Engine(load_plainly(model), EngineSize(1, 64))
    job = Job([prompt], seeds=[0], num_tokens=16, temperature=0.0)
    assert engine.run(job).answers[0].token_ids == theirs
