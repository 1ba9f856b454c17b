"""Every operation of every backend against the reference.

Bits where bits are promised: tokens, outcomes, noise. Tolerances where arithmetic is another:
forwards and passes. And the errors.
"""

import random

import numpy as np
import pytest
import torch

from specserve import noise
from specserve.backends.choose import choose_backend
from specserve.drafters.branch_attention import Entering
from specserve.drafters.load import load_drafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.models.attention import AttentionBatch
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from specserve.noise import Purpose
from specserve.sampling.draft_sampler import Greedy
from specserve.sampling.verification.batch import RowToVerify
from specserve.sampling.verification.method import VerificationMethod
from tests.device.random_rounds import random_kinds, random_round
from tests.exactness.speculative import Models
from tests.specserve.drafters.checkpoints import DSPARK, options, write_drafter
from tests.specserve.models.checkpoints import LLAMA, QWEN3, write_checkpoint
from tests.specserve.sampling.test_sampling import state

NEAR = {"atol": 1e-4, "rtol": 1e-3}
BLOCK, NUM_BLOCKS = 16, 40


def model_on(device, folder, config=QWEN3):
    return load_model(
        write_checkpoint(folder, config, max_position_embeddings=512),
        dtype=torch.float32,
        backend=choose_backend(device),
        parallel=TensorParallel(),
        deterministic=False,
    )


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return torch.equal(ours.cpu(), theirs.cpu())


def near(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours.cpu(), theirs.cpu(), **NEAR)


# --- the target ----------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [QWEN3, LLAMA], ids=["qwen3", "llama"])
def test_forwards(both, tmp_path, config):
    device = both[0].device
    model = model_on(device, tmp_path, config)
    sizes = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK, "deterministic": False}
    forwards = [backend.make_forward(model, **sizes) for backend in both]
    tables = [np.arange(1, 9), np.arange(9, 17), np.arange(17, 25)]
    rounds = (([40, 3, 1], [40, 3, 1]), ([1, 5, 2], [41, 8, 3]), ([1, 1, 1], [42, 9, 4]))
    rng = np.random.default_rng(0)
    for counts, ends in (*rounds, ([4, 1, 3], [46, 10, 7])):
        batch = AttentionBatch(np.array(counts), np.array(ends), tables)
        token_ids = torch.from_numpy(rng.integers(0, model.config.vocab_size, sum(counts)))
        found = []
        for forward in forwards:
            forward.plan(batch)
            hidden, tapped = forward.run(token_ids.to(device), (-1, 0))
            found.append([x.cpu().clone() for x in (hidden, *tapped)])
        for ours, theirs in zip(*found, strict=True):
            near(ours, theirs)
    for row, end in enumerate((46, 10, 7)):
        blocks = torch.from_numpy(tables[row]).to(device)
        pairs = zip(*(forward.cache.read(1, blocks) for forward in forwards), strict=True)
        for ours, theirs in pairs:
            near(ours[:, :end], theirs[:, :end])


@pytest.mark.parametrize("method", list(VerificationMethod))
def test_verified_rows(both, method):
    """Rows of one rule, some of which draft nothing and are sampled."""
    backend, reference = both
    source, num_accepted = random.Random(str(method)), 0
    for _ in range(6):
        kinds = random_kinds(source)._replace(methods=(method,))
        given = random_round(source, kinds, most_rows=5).on(backend.device)
        before = given.logits.clone()
        found = backend.verify(*given)
        assert found == reference.verify(*given)
        assert same(given.logits.nan_to_num(), before.nan_to_num())
        num_accepted += sum(found.num_accepted)
    assert num_accepted > 3


def test_rows_of_several_methods_are_verified_together(both):
    backend, reference = both
    source = random.Random(3)
    for _ in range(3):
        kinds = random_kinds(source)._replace(methods=tuple(VerificationMethod))
        given = random_round(source, kinds).on(backend.device)
        assert backend.verify(*given) == reference.verify(*given)


def test_drafted_tokens_without_probabilities_are_refused(both):
    rows = [RowToVerify(VerificationMethod.REJECTION, state(), [3])]
    for backend in both:
        with pytest.raises(ValueError, match="no draft distribution"):
            backend.verify(torch.zeros(2, 8, device=backend.device), rows, None)


# --- noise ---------------------------------------------------------------------------------------


def test_noise_has_the_bits_of_its_definition(both):
    device, rng = both[0].device, np.random.default_rng(0)
    for num_rows in (0, 1, 3, 8):
        keys = torch.from_numpy(rng.integers(0, 500, (4, num_rows))).to(device)
        blocks = torch.arange(20, device=device)[None]
        positions, samples, purposes, seeds = keys
        found = noise._word_bits(seeds, samples, positions, purposes, blocks)
        assert same(found, noise.philox_floats(blocks, *keys))
    seeds, samples, positions, _ = keys
    whole = noise.exponential_noise(seeds, samples, positions, Purpose.OUTPUT, 77)
    ids = torch.from_numpy(rng.integers(0, 77, (8, 5))).to(device)
    few = noise.exponential_noise_at(seeds, samples, positions, Purpose.OUTPUT, ids)
    assert same(few, whole.gather(1, ids))


# --- drafters ------------------------------------------------------------------------------------

ROWS = [0, 1, 1, 0]
LENGTHS = [20, 33, 12, 7]


def extended(passes, device):
    """Contexts of two rows whose entries are those of fixed tokens."""
    lengths = [20, 33]
    passes.context.rows.append([0, 1], [0, 0], lengths)
    ids = np.random.default_rng(1).integers(1, 60, sum(lengths)).tolist()
    passes.enter(Entering([0, 1], [0, 0], lengths, ids))
    return passes


def passes_of_chains(backend, model):
    """Hidden states of four passes, behind tokens that enter with the first."""
    device = backend.device
    passes = extended(backend.chain_passes(model, num_tokens=256, longest=4), device)
    passes.context.rows.reserve([1], [33], [2])
    passes.plan(ROWS, LENGTHS, 4, Entering([1], [33], [2], [5, 9]))
    rng = np.random.default_rng(2)
    steps = [torch.from_numpy(rng.integers(1, 60, len(ROWS))).to(device) for _ in range(4)]
    return [passes.run(step).cpu().clone() for step in steps]


def test_passes_of_chains(both, tmp_path):
    model = model_on(both[0].device, tmp_path)
    found = [passes_of_chains(backend, model) for backend in both]
    for ours, theirs in zip(*found, strict=True):
        near(ours, theirs)


def test_passes_of_blocks_and_their_contexts(both, tmp_path, models: Models):
    device = both[0].device
    folder = write_drafter(tmp_path / "draft", DSPARK)
    found = []
    for backend in both:
        drafter = load_drafter(folder, models.target, options(backend=backend))
        features = torch.randn(30, drafter.feature_size, generator=torch.Generator().manual_seed(0))
        drafter.extend(
            ContextUpdate(
                [0, 1], [0, 0], [10, 20], torch.arange(30, device=device), features.to(device)
            )
        )
        drafter.extend(ContextUpdate([1], [20], [2], torch.tensor([7, 8], device=device), None))
        for more in ({}, {"gap_ids": [[1], [], [4, 5]]}, {"context_lens": [5, 20, 10]}):
            anchors = torch.tensor([3, 14, 15], device=device)
            batch = DraftBatch([0, 1, 0], anchors, keep_logits=True, **more)
            drawn = drafter.draft(batch, Greedy())
            found.append([drawn.token_ids, drawn.logits, drawn.confidences])
        for row in (0, 1):
            found += [list(drafter.context.read(row, 0))]
    half = len(found) // 2
    for ours, theirs in zip(found[:half], found[half:], strict=True):
        for mine, others in zip(ours, theirs, strict=True):
            near(mine.float(), others.float())


def test_a_context_that_does_not_follow_is_refused(both, tmp_path):
    model = model_on(both[0].device, tmp_path)
    for backend in both:
        passes = extended(backend.chain_passes(model, num_tokens=256, longest=4), backend.device)
        with pytest.raises(ValueError, match="row 0 ends at 20, not at 25"):
            passes.context.rows.append([0], [25], [1])
