"""Whole nodes on the pretended device: the real loops, which other tests run on the CPU."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch

from draft_node.draft_slots import DraftSlots
from specserve.backends.base import Backend
from specserve.backends.choose import choose_backend
from specserve.backends.torch.backend import TorchBackend
from specserve.drafters.protocol import Drafter
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from specserve.models.transformer import Transformer
from tests.device.pretended import DEVICE
from tests.exactness import speculative
from tests.exactness.speculative import Models
from tests.specserve.drafters.checkpoints import options
from tests.target_node import in_process, in_process_pair, scripted_drafts
from tests.target_node.in_process import InProcessTarget
from tests.target_node.in_process_pair import InProcessPair
from tests.target_node.scripted_drafts import Drafting


def model_on_device(
    models: Models,
    *,
    dtype: torch.dtype = torch.float32,
    deterministic: bool = False,
    device: torch.device = DEVICE,
) -> Transformer:
    return load_model(
        models.target.folder,
        dtype=dtype,
        backend=choose_backend(device),
        parallel=TensorParallel(),
        deterministic=deterministic,
    )


def drafter_on_device(
    models: Models, name: str, dtype: torch.dtype = torch.float32, backend: Backend | None = None
) -> Drafter:
    on_device = partial(options, backend=backend or TorchBackend(DEVICE), dtype=dtype)
    chain = on_device(num_context_tokens=4096, gamma=4, max_positions=speculative.MAX_LEN)
    with (
        mock.patch.object(speculative, "options", on_device),
        mock.patch.object(speculative, "_CHAIN", chain),
    ):
        return models.drafter(name)


def _use_forwards(target: InProcessTarget, backend: Backend, *, deterministic: bool) -> None:
    """Those of `backend`, whatever else computes: torch's own are not captured."""
    cache = target.runner.cache
    target.runner.passes = backend.make_forward(
        target.runner.model,
        num_blocks=cache.num_blocks,
        block_size=cache.block_size,
        deterministic=deterministic,
    )


def target_on_device(
    models: Models,
    drafter: str | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    deterministic: bool = False,
    backend: Backend | None = None,
    captures_forwards: bool = False,
    **settings: Any,
) -> InProcessTarget:
    """Plain decoding, or a drafter beside the target."""
    backend = backend or TorchBackend(DEVICE)
    device = backend.device
    with mock.patch.object(in_process, "BACKEND", backend):
        target = InProcessTarget(
            model_on_device(models, dtype=dtype, deterministic=deterministic, device=device),
            draft=None if drafter is None else drafter_on_device(models, drafter, dtype, backend),
            **{"max_model_len": 90} | settings,
        )
    forwards = backend if captures_forwards else TorchBackend(device)
    _use_forwards(target, forwards, deterministic=deterministic)
    return target


@contextmanager
def pair_on_device(
    models: Models,
    drafter: str,
    drafting: Drafting | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    deterministic: bool = False,
    backend: Backend | None = None,
    **settings: Any,
) -> Iterator[InProcessPair]:
    """A target and a draft process, which is on the device too."""
    backend = backend or TorchBackend(DEVICE)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(in_process, "BACKEND", backend))
        stack.enter_context(mock.patch.object(in_process_pair, "CPU", DEVICE))
        stack.enter_context(mock.patch.object(scripted_drafts, "CPU", DEVICE))
        stack.enter_context(mock.patch.object(scripted_drafts, "BACKEND", backend))
        streams = partial(DraftSlots, device=DEVICE)
        wanted = mock.Mock(side_effect=lambda drafter, **_: streams(drafter, dtype=dtype))
        stack.enter_context(mock.patch.object(scripted_drafts, "DraftSlots", wanted))
        pair = InProcessPair(
            model_on_device(models, dtype=dtype, deterministic=deterministic),
            partial(drafter_on_device, models, drafter, dtype, backend),
            drafting,
            **{"max_model_len": 90} | settings,
        )
        _use_forwards(pair, TorchBackend(DEVICE), deterministic=deterministic)
        yield stack.enter_context(pair)
