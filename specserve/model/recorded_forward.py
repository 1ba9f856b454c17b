"""Forwards of few tokens a row, recorded once a shape and replayed: see `forward`.

A forward of few tokens is some thirty kernels a layer of a few microseconds each, and beginning one
from Python takes longer than that. A CUDA graph begins all of them at once. Only batches of the
same shape have the same kernels on the same memory: rows, tokens and keys are padded to powers of
two. What fits no shape (pieces of prompts, mostly) is run by torch's own operations.
See docs/decisions/0024-cuda-graphs.md.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable

import torch

from specserve.model.attention import AttentionBatch
from specserve.model.kv_cache import KVCache
from specserve.model.padded_attention import PaddedAttention, PaddedShape
from specserve.model.torch_forward import TorchForward
from specserve.model.transformer import Transformer

MOST_RECORDINGS = 128  # that are kept, of the shapes that were met last

log = logging.getLogger(__name__)


class CudaGraphs:
    """Records what a function does on a CUDA device, all in memory that recordings share."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def record(self, function: Callable[[], None]) -> Callable[[], object]:
        """What does it again, on the same memory. `function` waits for nothing on the device."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            function()  # what its first call makes for all others must not be in the recording
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads, of links, may ask anything of the device meanwhile.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            function()
        return graph.replay


class RecordedForward:
    """A `TorchForward`, and a recording of every shape that was met."""

    def __init__(self, model: Transformer, plain: TorchForward, graphs: CudaGraphs) -> None:
        self._model = model
        self._plain = plain
        self._graphs = graphs
        self._recordings: OrderedDict[tuple[PaddedShape, tuple[int, ...]], _Recording] = (
            OrderedDict()
        )
        self._shape: PaddedShape | None = None
        self._has_failed = False

    @property
    def cache(self) -> KVCache:
        return self._plain.cache

    @property
    def num_recordings(self) -> int:
        return len(self._recordings)

    def plan(self, batch: AttentionBatch) -> None:
        self._batch = batch
        self._shape = None if self._has_failed else PaddedShape.of(batch, self.cache.block_size)
        if self._shape is None:
            self._plain.plan(batch)

    def run(
        self, token_ids: torch.Tensor, taps: tuple[int, ...] = ()
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """See `Forward`; what it returned is overwritten by the next one."""
        recording = None if self._shape is None else self._recording(self._shape, taps)
        if recording is None:
            return self._plain.run(token_ids, taps)
        return recording.run(self._batch, token_ids)

    def _recording(self, shape: PaddedShape, taps: tuple[int, ...]) -> "_Recording | None":
        """None, now and from now on, where it cannot be made."""
        found = self._recordings.get((shape, taps))
        if found is None:
            found = _Recording(self._model, self.cache, shape, taps)
            try:
                found.make(self._graphs, self._batch)
            except RuntimeError as error:
                log.warning("forwards are run without CUDA graphs, which is slower: %s", error)
                self._has_failed = True
                self._plain.plan(self._batch)
                return None
            self._recordings[shape, taps] = found
            if len(self._recordings) > MOST_RECORDINGS:
                self._recordings.popitem(last=False)
        self._recordings.move_to_end((shape, taps))
        return found


class _Recording:
    """Of the forwards of one shape."""

    def __init__(
        self, model: Transformer, cache: KVCache, shape: PaddedShape, taps: tuple[int, ...]
    ) -> None:
        self._model = model
        num_heads = model.config.num_heads // model.parallel.size
        self._attention = PaddedAttention(cache, num_heads=num_heads, shape=shape)
        self._taps = taps
        num_tokens = shape.num_rows * shape.num_tokens
        self._token_ids = torch.zeros(num_tokens, dtype=torch.int64, device=cache.device)

    def make(self, graphs: CudaGraphs, batch: AttentionBatch) -> None:
        """While `batch` is what is to be computed, so that nothing else is written to the cache.

        The keys and values that are written are not yet those of its tokens.
        """
        self._attention.fill(batch)
        self._replay = graphs.record(self._forward)

    def _forward(self) -> None:
        self._attention.begin()
        self._found = self._model.forward(
            self._token_ids, self._attention.positions, self._attention, self._taps
        )

    def run(
        self, batch: AttentionBatch, token_ids: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        self._attention.fill(batch)
        torch.index_select(token_ids, 0, self._attention.sources, out=self._token_ids)
        self._replay()
        hidden, tapped = self._found
        unpadded = self._attention.unpadded
        return unpadded(hidden), [unpadded(x) for x in tapped]
