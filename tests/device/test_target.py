"""A target rank on a device: model, cache, sampling, verification, drafters beside it."""

from functools import partial
from pathlib import Path

import pytest
import torch

from specserve.backends.choose import choose_backend
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from specserve.sampling.verification.method import VerificationMethod
from specserve.types import Terminal
from target_node.runner import Runner
from tests.device.pretended import DEVICE, PretendedCuda
from tests.device.workload import both_kinds, every_request
from tests.device.worlds import target_on_device
from tests.exactness.speculative import DRAFTERS, Models, RandomBudget, run
from tests.gpu.test_cuda_forward import batch
from tests.specserve.models.checkpoints import LLAMA, QWEN3, write_checkpoint
from tests.target_node.in_process import InProcessTarget

KINDS = ["dspark vanilla", "eagle3", "dflash with a local head"]
QUICK = "dspark vanilla"
NAMES = [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DRAFTERS]
BOTH = [torch.float32, torch.bfloat16]
MOSTLY = [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]


def finished(target: InProcessTarget, asked: list, at_once: int = 4) -> dict:
    """What `run` finds, once everything has ended well."""
    found = run(target, asked, at_once=at_once)
    assert set(found["ends"].values()) == {(Terminal.FINISHED, "")}
    assert len(found["ends"]) == len(asked)
    return found


@pytest.mark.parametrize("deterministic", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("config", [QWEN3, LLAMA], ids=["qwen3", "llama"])
@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [*((dtype, dtype) for dtype in BOTH), BOTH],
    ids=["float32", "bfloat16", "keys and values in bfloat16"],
)
def test_a_forward_stays_on_the_device_and_gives_the_cpu_s_logits(
    cuda: PretendedCuda,
    tmp_path: Path,
    config: dict,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    deterministic: bool,
):
    folder = write_checkpoint(tmp_path, config, max_position_embeddings=512)
    logits = {}
    for device in (torch.device("cpu"), DEVICE):
        model = load_model(
            folder,
            dtype=dtype,
            backend=choose_backend(device),
            parallel=TensorParallel(),
            deterministic=deterministic,
            ballast=120_000,
        )
        runner = Runner(
            model,
            backend=choose_backend(device),
            num_blocks=200,
            block_size=16,
            deterministic=deterministic,
            kv_dtype=kv_dtype,
        )
        found = runner.forward(batch(model.config.vocab_size))
        assert found is not None
        assert (found.device, found.dtype) == (device, torch.float32)
        logits[device.type] = found.cpu()
    near = 1e-4 if kv_dtype is torch.float32 else 0.1
    torch.testing.assert_close(logits["cuda"], logits["cpu"], atol=near, rtol=near)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BOTH)
def test_plain_decoding_with_every_field(cuda: PretendedCuda, models: Models, dtype: torch.dtype):
    target = target_on_device(models, dtype=dtype)
    found = finished(target, both_kinds())
    assert len(found["prompts"]) == 3
    assert cuda.num_operations > 1000


@pytest.mark.slow
@pytest.mark.parametrize("dtype", MOSTLY)
@pytest.mark.parametrize("name", NAMES)
def test_a_drafter_beside_the_target(
    cuda: PretendedCuda, models: Models, name: str, dtype: torch.dtype
):
    target = target_on_device(
        models,
        name,
        dtype=dtype,
        default_method=VerificationMethod.FORESEEABLE,
        max_batch_tokens=24,
    )
    finished(target, both_kinds())
    assert target.sampler.num_broken_laws == 0
    assert target.node._load._num_drafts > 5


@pytest.mark.slow
@pytest.mark.parametrize("method", list(VerificationMethod))
def test_every_method(cuda: PretendedCuda, models: Models, method: VerificationMethod):
    target = target_on_device(
        models, "dspark vanilla", default_method=method, budget=RandomBudget(3), max_batch_rows=4
    )
    finished(target, every_request())
    assert target.sampler.num_broken_laws == 0
    assert target.node._load._num_drafts > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", [*KINDS, "dspark rnn", "speculators"])
def test_drafts_leave_the_text_alone_in_deterministic_arithmetic(
    cuda: PretendedCuda, models: Models, name: str
):
    """The paths that only a device takes (noise, partitions, tiles) agree with themselves."""
    asked = partial(every_request, seeded=True, max_tokens=20)
    plain = finished(target_on_device(models, deterministic=True), asked())
    target = target_on_device(models, name, deterministic=True, budget=RandomBudget(1))
    assert finished(target, asked()) == plain
    assert sum(target.node._load._accepted) > 0
