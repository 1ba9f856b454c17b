# pyright: strict
"""What travels between the bench and its pinned children, and what one measurement leaves behind.

JSON lines of msgspec structs. Times are seconds, measured by the process that reports them.
"""

import itertools

import msgspec

from bench.processes import Usage
from bench.rounds import decode_window


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The first line a child reads: what to load and where to run. The service runs with the same.

    `ballast` counts parameters; 0 is none. `num_blocks` is the size of the service's KV pool.
    """

    folder: str
    parent_pid: int
    cores: tuple[int, ...]
    threads: int = 1
    device: str = "cpu"
    ballast: int = 0
    dtype: str = "float32"
    kv_dtype: str = "float32"
    deterministic: bool = True
    cuda_graphs: bool = False
    block_size: int = 16
    num_blocks: int = 1024
    max_batch_tokens: int = 512


class GenerateJob(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of prompts, all continued by exactly `num_tokens` tokens."""

    prompts: list[list[int]]
    num_tokens: int
    temperature: float = 0.0

    @property
    def batch_size(self) -> int:
        return len(self.prompts)

    @property
    def prompt_lens(self) -> list[int]:
        return [len(prompt) for prompt in self.prompts]


class BatchTrace(msgspec.Struct, frozen=True, kw_only=True):
    """When each token of each row arrived, counted from the moment the batch was handed over.

    `usage` is what the kernel counted meanwhile, by process.
    """

    arrivals_s: list[list[float]]
    token_ids: list[list[int]]
    total_s: float
    usage: dict[str, Usage] = {}

    @property
    def first_token_s(self) -> float:
        """Until every row has its first token."""
        return max(row[0] for row in self.arrivals_s)

    @property
    def tokens_per_s(self) -> float:
        """Of the whole call, prompt processing included."""
        return sum(map(len, self.arrivals_s)) / self.total_s

    @property
    def decode_window_s(self) -> tuple[float, float]:
        """While all rows decode."""
        return decode_window(self.arrivals_s)

    @property
    def is_side_by_side(self) -> bool:
        """Whether there was a time in which all rows decoded, and tokens came."""
        start, end = self.decode_window_s
        return any(start < at <= end for row in self.arrivals_s for at in row)

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens a second of the full batch; rows that wait or have finished are left out."""
        start, end = self.decode_window_s
        num_tokens = sum(sum(start < at <= end for at in row) for row in self.arrivals_s)
        return num_tokens / (end - start)

    @property
    def round_s(self) -> float:
        """Mean time between two tokens of a row while all rows decode."""
        return len(self.arrivals_s) / self.decode_tokens_per_s

    @property
    def intervals_s(self) -> list[float]:
        """Times between consecutive tokens of the first row while all rows decode."""
        start, end = self.decode_window_s
        inside = [at for at in self.arrivals_s[0] if start <= at <= end]
        return [b - a for a, b in itertools.pairwise(inside)]


class ForwardJob(msgspec.Struct, frozen=True, kw_only=True, tag="forward"):
    """Bare forwards of the prompts if `num_tokens` is 1, else of all rows' steps after them.

    N tokens take N - 1 steps: the prompts' own forward gives the first.
    """

    prompt_lens: list[int]
    num_tokens: int


class RoundJob(msgspec.Struct, frozen=True, kw_only=True, tag="rounds"):
    """The same as whole rounds of a node in this process, with a timer around every stage."""

    prompt_lens: list[int]
    num_tokens: int
    temperature: float = 0.0


class ForwardTimes(msgspec.Struct, frozen=True, kw_only=True, tag="forward_times"):
    """Seconds of each single-token forward, and of the chunks of all prompts together."""

    steps_s: list[float]
    prompt_s: float
    usage: Usage = Usage()  # of the steps and the prompt together
    steps_cpu_s: float = 0.0  # processor time of the steps alone


class RoundTimes(msgspec.Struct, frozen=True, kw_only=True, tag="round_times"):
    """Median seconds of each stage of a decode round, in the order of the round, and of the whole.

    The stages do not overlap; `other` is what no stage covers.
    """

    stages_s: dict[str, float]
    round_s: float
    num_rounds: int
