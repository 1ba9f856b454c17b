"""The floor: forwards of the served model without an engine around them, in a pinned process.

A bare forward is `Forward.run` plus `Transformer.logits` of a batch that is laid out
already: embedding, all layers with attention over the paged cache, head. Scheduling, the attention
plan, sampling and messages are the engine's, and are left out. The same process also runs whole
rounds of a node, for the breakdown by stage.
"""

import time

import numpy as np
import torch

from bench.breakdown import measure_rounds
from bench.pinned_child import answer_jobs
from bench.processes import usage
from bench.records import ForwardJob, ForwardTimes, RoundJob, RoundTimes, Setup
from specserve.backends.choose import choose_backend
from specserve.models.attention import AttentionBatch
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from target_node.runner import Runner


def load_runner(setup: Setup) -> Runner:
    """The model and cache that a rank of the service would have."""
    torch.set_num_threads(setup.threads)
    device = torch.device(setup.device)
    model = load_model(
        setup.folder,
        dtype=getattr(torch, setup.dtype),
        backend=choose_backend(device),
        parallel=TensorParallel(),
        ballast=setup.ballast,
        deterministic=setup.deterministic,
    )
    return Runner(
        model,
        backend=choose_backend(device, cuda_graphs=setup.cuda_graphs),
        num_blocks=setup.num_blocks + 1,
        block_size=setup.block_size,
        deterministic=setup.deterministic,
        kv_dtype=getattr(torch, setup.kv_dtype),
    )


class Bare:
    """Answers forward and round jobs over one model."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._runner = load_runner(setup)
        self._cpu_s = 0.0  # of the last forward

    def __call__(self, job: ForwardJob | RoundJob) -> ForwardTimes | RoundTimes:
        if isinstance(job, RoundJob):
            return measure_rounds(self._runner, job, self._setup)
        before = usage()
        # The cost of a step does not depend on what is in the cache, so a job of steps needs none.
        chunks = self._prompt_chunks(job.prompt_lens) if job.num_tokens == 1 else []
        prompt_s = sum(self._forward_s(AttentionBatch(*chunk)) for chunk in chunks)
        tables = self._tables(job)
        counts = np.ones(len(tables), dtype=np.int64)
        lens = np.array(job.prompt_lens, dtype=np.int64)
        steps_s, cpu_s = [], 0.0
        for step in range(1, job.num_tokens):  # the prompt's own forward gives the first token
            batch = AttentionBatch(counts, lens + step, tables)
            steps_s.append(self._forward_s(batch))
            cpu_s += self._cpu_s
        return ForwardTimes(
            steps_s=steps_s, prompt_s=prompt_s, usage=usage().since(before), steps_cpu_s=cpu_s
        )

    def _tables(self, job: ForwardJob) -> list[np.ndarray]:
        """Consecutive blocks for every row, enough for its prompt and answer."""
        size = self._setup.block_size
        counts = [-(-(length + job.num_tokens) // size) for length in job.prompt_lens]
        ends = np.cumsum(counts) + 1  # block 0 is the null block
        return [np.arange(end - count, end) for count, end in zip(counts, ends, strict=True)]

    def _prompt_chunks(self, lens: list[int]) -> "list[tuple[np.ndarray, np.ndarray, list]]":
        """All prompts in forwards of at most the service's token budget, row after row."""
        tables = self._tables(ForwardJob(prompt_lens=lens, num_tokens=1))
        budget = self._setup.max_batch_tokens
        chunks: list[list[tuple[int, int, np.ndarray]]] = [[]]
        left = budget
        for length, table in zip(lens, tables, strict=True):
            done = 0
            while done < length:
                if left == 0:
                    chunks.append([])
                    left = budget
                count = min(length - done, left)
                done, left = done + count, left - count
                chunks[-1].append((count, done, table))
        return [
            (
                np.array([count for count, _, _ in chunk]),
                np.array([end for _, end, _ in chunk]),
                [table for _, _, table in chunk],
            )
            for chunk in chunks
        ]

    @torch.inference_mode()
    def _forward_s(self, batch: AttentionBatch) -> float:
        """Seconds of one bare forward with logits for the last token of each row."""
        runner, counts = self._runner, batch.num_tokens
        device = runner.model.embedding.device
        positions = torch.from_numpy(batch.positions()).to(device)
        token_ids = positions % runner.model.config.vocab_size  # any tokens cost the same
        last = torch.from_numpy(np.cumsum(counts) - 1).to(device)
        runner.passes.plan(batch)
        _await(device)
        cpu_s, start_s = time.thread_time(), time.perf_counter()
        hidden, _ = runner.passes.run(token_ids)
        rows = hidden if len(last) == len(hidden) else hidden.index_select(0, last)
        runner.model.logits(rows)
        _await(device)
        elapsed_s = time.perf_counter() - start_s
        self._cpu_s = time.thread_time() - cpu_s
        return elapsed_s


def _await(device: torch.device) -> None:
    """Until the device has done what it was asked for; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    answer_jobs(ForwardJob | RoundJob, Bare)
