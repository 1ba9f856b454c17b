"""Forwards compiled for this processor, of targets and drafters, and compiled noise.

Everything else is the reference's. What a model's products are is decided when it is loaded; a
model with a product that is not compiled is run by the reference, which is said in the log.
"""

import functools
import logging

import torch

from specserve.backends.cpu import compiled, machine_code, noise
from specserve.backends.cpu.codegen.row_code import Storage
from specserve.backends.cpu.forward import CompiledForward
from specserve.backends.cpu.parts import CpuParts, can_halve_exactly
from specserve.backends.cpu.passes import CompiledPasses
from specserve.backends.cpu.row_kernels import row_kernels
from specserve.backends.cpu.self_test import are_usable
from specserve.backends.cpu.weights import are_compiled
from specserve.backends.torch.backend import TorchBackend
from specserve.drafters.backbone import Backbone
from specserve.drafters.block_passes import BlockPasses
from specserve.drafters.chain_passes import ChainPasses
from specserve.models.forward import Forward
from specserve.models.parallel import TensorParallel
from specserve.models.parts import LayerParts
from specserve.models.transformer import Transformer

_LONGEST_CHAIN = 16  # tokens at least, since calibrated chains are longer than others
_KEPT = (torch.float32, torch.bfloat16)  # what compiled attention reads
_LOG = logging.getLogger(__name__)


class CpuBackend(TorchBackend):
    """See `Backend`; made where `why_not` says nothing."""

    name = "cpu"

    @staticmethod
    @functools.cache
    def why_not() -> str:
        """What is in the way of compiled code here, in words; empty if nothing is.

        Compiles all there is, unless that was done before: some half a minute.
        """
        packages = {
            "llvmlite": (machine_code.llvm, machine_code.WHY_NOT),
            "numba": (compiled.numba, compiled.WHY_NOT),
        }
        lacking = [f"{name} ({why})" for name, (module, why) in packages.items() if module is None]
        if lacking:
            hint = "pip install 'specserve[cpu]' brings numba and llvmlite"
            return f"cannot import {' and '.join(lacking)}; {hint}"
        if row_kernels(Storage.FLOAT32) is None:
            return "no machine code can be made for this processor"
        if not (noise.register() and are_usable()):
            return "what numba compiles does not work here"
        return ""

    def target_parts(
        self, dtype: torch.dtype, *, deterministic: bool, is_stored_in_16_bits: bool
    ) -> LayerParts:
        is_16_bits = dtype in (torch.bfloat16, torch.float16)
        if (is_16_bits and not can_halve_exactly()) or not (is_16_bits or dtype == torch.float32):
            return super().target_parts(
                dtype, deterministic=deterministic, is_stored_in_16_bits=is_stored_in_16_bits
            )
        return CpuParts(
            deterministic=deterministic,
            half_weights=(is_16_bits or is_stored_in_16_bits) and can_halve_exactly(),
            may_round=False,  # what is stored in 16 bits need not be, one tensor at a time
            input_bits=16 if dtype == torch.bfloat16 else 32,
            rounded_to=dtype,
        )

    def layer_parts(self, dtype: torch.dtype, *, input_bits: int = 32) -> LayerParts:
        if dtype != torch.float32:
            return super().layer_parts(dtype, input_bits=input_bits)
        return CpuParts(deterministic=False, half_weights=input_bits < 32, input_bits=input_bits)

    def make_forward(
        self,
        model: Transformer,
        *,
        num_blocks: int,
        block_size: int,
        deterministic: bool,
        kv_dtype: torch.dtype | None = None,
    ) -> Forward:
        kept = kv_dtype or model.embedding.dtype
        # Ranks that disagree would not meet in the same collectives.
        if model.parallel.agree(kept in _KEPT and _is_compiled(model)):
            return CompiledForward(
                model, num_blocks=num_blocks, block_size=block_size, kv_dtype=kept
            )
        _hand_over("forwards of the target")
        return super().make_forward(
            model,
            num_blocks=num_blocks,
            block_size=block_size,
            deterministic=deterministic,
            kv_dtype=kept,
        )

    def chain_passes(self, model: Transformer, *, num_tokens: int, longest: int) -> ChainPasses:
        if model.parallel.size == 1 and _is_compiled(model):
            longest = max(longest, _LONGEST_CHAIN)
            return CompiledPasses(model, num_tokens=num_tokens, longest=longest)
        _hand_over("a language model's chains")
        return super().chain_passes(model, num_tokens=num_tokens, longest=longest)

    def block_passes(self, backbone: Backbone, *, num_tokens: int) -> BlockPasses:
        model = _as_transformer(backbone)
        if model is not None and _is_compiled(model):
            # A gap is what was verified of the pending block, and the token that followed it.
            longest = 2 * backbone.spec.block_size + 1
            return CompiledPasses(model, num_tokens=num_tokens, longest=longest, backbone=backbone)
        _hand_over(f"passes of {backbone.spec.name}")
        return super().block_passes(backbone, num_tokens=num_tokens)


def _is_compiled(model: Transformer) -> bool:
    return model.embedding.dtype == torch.float32 and are_compiled(model)


@functools.cache
def _hand_over(what: str) -> None:
    """Once a process."""
    _LOG.info("%s: by torch, for not all of their products are compiled", what)


def _as_transformer(backbone: Backbone) -> Transformer | None:
    """The same layers as a target has them; None where they are others."""
    spec, layers = backbone.spec, backbone.decoder_layers()
    if layers is None or spec.embedding_scale != 1:
        return None
    return Transformer(
        spec.decoder,
        embedding=backbone.embedding,
        layers=layers,
        final_norm=backbone.final_norm,
        lm_head=backbone.lm_head,
        rotary=backbone.rotary,
        parallel=TensorParallel(),
    )
