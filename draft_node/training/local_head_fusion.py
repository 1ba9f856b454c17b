"""How strongly a local head and the unigram prior count: a grid search, the drafter in the loop.

Fitting alpha and beta to known text makes them too large, because later slots are then told true
tokens (DeLS-Spec, appendix C). So every pair drafts for itself, along the same texts, under the
same noise, and the one with the largest accept length is taken.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch

from draft_node.calibration.collect import Conditions, collect
from draft_node.calibration.texts import Prompt, Text, write_texts
from draft_node.offline_target import OfflineTarget
from specserve.backends.choose import choose_backend
from specserve.drafters.attach_calibration import listen
from specserve.drafters.block_drafter import BlockDrafter
from specserve.drafters.dialects import read_draft_spec
from specserve.drafters.load import DrafterOptions, load_drafter
from specserve.drafters.local_head import LocalHeadOptions, load_local_head
from specserve.drafters.probs_confidence import FeatureRecorder
from specserve.drafters.spec import LocalHeadSpec
from specserve.drafters.weights import TargetWeights
from specserve.errors import Unsupported
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from specserve.sampling.verification.method import VerificationMethod

log = logging.getLogger(__name__)

GRID = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
_CONDITIONS = Conditions(VerificationMethod.REJECTION, temperature=1.0, stride=4)
_RESERVE = 48  # positions of a row beyond its text: a block, and a page that is not full


@dataclass(frozen=True)
class FusionPlan:
    """How much text is looked at."""

    num_texts: int = 24  # over all domains
    prompt_len: int = 48
    num_tokens: int = 96


@dataclass(frozen=True)
class Chosen:
    """The best pair of the grid, and what the drafter reaches with it and without the head."""

    alpha: float
    beta: float
    accept_len: float
    accept_len_without: float


def search(score: Callable[[float, float], float], grid: Sequence[float] = GRID) -> Chosen:
    """The pair with the largest score; the smallest alpha, then beta, among equals.

    Without the head there is no prior to correct for either: that is (0, 0).
    """
    without = score(0.0, 0.0)
    best = Chosen(0.0, 0.0, without, without)
    for alpha, beta in product(filter(None, grid), grid):
        found = score(alpha, beta)
        log.info("alpha %.1f beta %.1f: accept length %.3f", alpha, beta, found)
        if found > best.accept_len:
            best = Chosen(alpha, beta, found, without)
    return best


def choose_weights(
    target: Path,
    drafter: Path,
    head: Path,
    held_out: Mapping[str, np.ndarray],
    *,
    device: torch.device,
    seed: int = 0,
    plan: FusionPlan | None = None,
) -> Chosen:
    """alpha and beta of the head in `head` for the DFlash in `drafter`.

    The target continues pieces of the `held_out` streams at temperature 1. Raises `Unsupported` for
    a drafter that takes no local head.
    """
    plan = plan or FusionPlan()
    loop = _Loop(target, drafter, head, plan, device)
    texts = write_texts(
        loop.target, _prompts(held_out, plan), num_tokens=plan.num_tokens, temperature=1.0,
        seed=seed,
    )  # fmt: skip
    return search(lambda alpha, beta: loop.accept_len(texts, alpha, beta))


def _prompts(held_out: Mapping[str, np.ndarray], plan: FusionPlan) -> list[Prompt]:
    """Pieces of the streams, evenly spread."""
    prompts: list[Prompt] = []
    each = max(1, plan.num_texts // len(held_out))
    for domain, marked in held_out.items():
        stream = np.where(marked < 0, ~marked, marked)  # whether they are learned or not
        starts = np.linspace(0, max(0, len(stream) - plan.prompt_len), each).astype(int)
        prompts += [Prompt(domain, tuple(stream[s : s + plan.prompt_len].tolist())) for s in starts]
    return prompts


class _Loop:
    """The target, the DFlash and its head, whose weights change from one collection to the next."""

    def __init__(
        self, target: Path, drafter: Path, head: Path, plan: FusionPlan, device: torch.device
    ) -> None:
        model = load_model(
            target, dtype=torch.float32, backend=choose_backend(device), parallel=TensorParallel(),
            deterministic=False,
        )  # fmt: skip
        longest = plan.prompt_len + plan.num_tokens + _RESERVE
        room = longest * _CONDITIONS.batch_size
        options = DrafterOptions(
            torch.float32, choose_backend(device), num_context_tokens=room, max_positions=longest,
            local_head=head, calibrated=False,
        )  # fmt: skip
        self._weights = TargetWeights.of(target, model)
        loaded = load_drafter(drafter, self._weights, options)
        spec = read_draft_spec(head)
        if not isinstance(loaded, BlockDrafter) or not isinstance(spec, LocalHeadSpec):
            raise Unsupported(f"{drafter}: takes no local head")
        self._drafter, self._head, self._spec, self._device = loaded, head, spec, device
        self._recorder = FeatureRecorder()
        listen(loaded, self._recorder)
        self.target = OfflineTarget(model, num_tokens=room, layers=loaded.features.layers)

    def accept_len(self, texts: Sequence[Text], alpha: float, beta: float) -> float:
        """Mean tokens of a round with these weights."""
        self._drafter.head = load_local_head(
            self._head,
            replace(self._spec, alpha=alpha, beta=beta),
            target=self._weights,
            dtype=torch.float32,
            backend=choose_backend(self._device),
            options=LocalHeadOptions(alpha, beta),
            target_ids=self._drafter.target_ids,
        )
        samples = collect(self.target, self._drafter, texts, _CONDITIONS, recorder=self._recorder)
        return samples.accept_len
