"""A target node without processes or sockets: the real loop, model and cache, a scripted control.

For what needs thousands of rounds. Everything that crosses a process border is tested elsewhere.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from specserve.backends.choose import choose_backend
from specserve.drafters.protocol import Drafter
from specserve.grammars.compiler import GrammarCompiler
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from specserve.models.transformer import Transformer
from specserve.sampling.verification.admission import Allocator
from specserve.sampling.verification.method import VerificationMethod
from specserve.types import (
    FromTarget,
    Logprobs,
    PromptLogprobs,
    Request,
    RequestEnd,
    RoundEvents,
    SamplingParams,
    Submit,
    ToTarget,
)
from specserve.validation import Limits
from target_node.blocks import BlockPool
from target_node.node import TargetNode
from target_node.planning.acceptance import Acceptance
from target_node.planning.admission import Admission
from target_node.planning.draft_pace import DraftPace
from target_node.planning.policies import ThresholdPolicy
from target_node.planning.round_prices import RoundCosts, RoundPrices
from target_node.ranks import Ranks
from target_node.runner import Runner
from target_node.sampler import Sampler
from target_node.scheduler import Scheduler
from target_node.speculation.drafting import ColocatedDraft
from target_node.speculation.source import NoSpeculation, SynchronousSpeculation
from tests.backends.chosen import BACKEND

FIXTURES = Path(__file__).parent.parent / "fixtures" / "golden"


def fixture_model(case: str = "target_qwen3_untied", **options) -> Transformer:
    options = {"deterministic": True, "dtype": torch.float32} | options
    return load_model(
        FIXTURES / case,
        backend=choose_backend(torch.device("cpu")),
        parallel=TensorParallel(),
        **options,
    )


class ScriptedControl:
    """What a test puts in, and what the node sent."""

    def __init__(self) -> None:
        self.inbox: list[ToTarget] = []
        self.sent: list[FromTarget] = []

    def receive(self) -> list[ToTarget]:
        messages, self.inbox = self.inbox, []
        return messages

    def wait(self, timeout_s: float, alarm: int | None = None) -> bool:
        return bool(self.inbox)

    def send(self, message: FromTarget) -> bool:
        self.sent.append(message)
        return True


class InProcessTarget:
    """A node over `model` with `num_blocks` usable blocks."""

    def __init__(
        self,
        model: Transformer,
        *,
        num_blocks: int = 256,
        block_size: int = 4,
        max_batch_rows: int = 8,
        max_batch_tokens: int = 64,
        max_model_len: int = 512,
        prefix_cache: bool = True,
        draft: Drafter | None = None,
        default_method: VerificationMethod = VerificationMethod.COUPLED,
        budget: Allocator | None = None,
        prices: RoundPrices | None = None,
        pace: DraftPace | None = None,
        may_pause: bool = False,
        max_extension: int = 512,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """`pace`: of the drafter, as timed at start; without, its own drafts tell."""
        self.control = ScriptedControl()
        self.pool = BlockPool(num_blocks + 1, block_size, prefix_cache=prefix_cache)
        self.scheduler = Scheduler(
            self.pool, max_batch_rows=max_batch_rows, max_batch_tokens=max_batch_tokens
        )
        self.runner = Runner(
            model,
            backend=BACKEND,
            num_blocks=num_blocks + 1,
            block_size=block_size,
            deterministic=True,
        )
        max_model_len = min(max_model_len, num_blocks * block_size)
        self.sampler = Sampler(
            eos_token_ids=model.config.eos_token_ids,
            max_model_len=max_model_len,
            backend=BACKEND,
            default_method=default_method,
            grammars=grammars,
        )
        self.prices, self._pace, self._may_pause = prices, pace, may_pause
        self.speculation = (
            NoSpeculation() if draft is None else self._speculation(draft, budget, max_extension)
        )
        self.node = TargetNode(
            control=self.control,
            scheduler=self.scheduler,
            runner=self.runner,
            sampler=self.sampler,
            speculation=self.speculation,
            ranks=Ranks(1),
            limits=Limits(
                vocab_size=model.config.num_known_tokens,
                max_model_len=max_model_len,
                max_samples=16,
                max_logprobs=8,
            ),
        )

    def _speculation(
        self, drafter: Drafter, budget: Allocator | None, max_extension: int
    ) -> SynchronousSpeculation:
        spec = drafter.features
        colocated = ColocatedDraft(
            drafter,
            None if spec is None else self.runner.keep_features(spec),
            vocab_size=self.runner.model.config.vocab_size,
            num_kept=16,
            max_extension=max_extension,
            backend=self.runner.backend,
        )
        colocated.pace = self._pace or colocated.pace
        costs = None
        if self.prices is not None:
            costs = RoundCosts(self.prices, colocated.pace, self._may_pause)
        admission = Admission(
            acceptance=Acceptance(colocated.gamma),
            scheduler=self.scheduler,
            sampler=self.sampler,
            budget=budget or ThresholdPolicy(),
            costs=costs,
        )
        return SynchronousSpeculation(colocated, admission)

    def submit(self, request: Request) -> None:
        self.control.inbox.append(Submit(request))

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.node.turn()

    def run_until_idle(self, limit: int = 20_000) -> None:
        """Turn until no request is alive."""
        for _ in range(limit):
            self.node.turn()
            if not self.node.num_requests and not self.control.inbox:
                return
        raise AssertionError(f"{self.node.num_requests} requests still alive after {limit} turns")

    def spoil(self, slot: int) -> None:
        """What the cache keeps of one token is no number any more."""
        cache = self.runner.cache
        shape = (1, cache.num_layers, cache.num_kv_heads, cache.head_dim)
        nothing = torch.full(shape, torch.nan)
        cache.write_layers(np.array([slot]), nothing, nothing)

    @property
    def tokens(self) -> dict[tuple[str, int], list[int]]:
        """Everything emitted so far, by request and sample."""
        tokens: dict[tuple[str, int], list[int]] = defaultdict(list)
        for message in self.control.sent:
            if isinstance(message, RoundEvents):
                for delta in message.deltas:
                    tokens[delta.request_id, delta.sample_index] += delta.token_ids
        return dict(tokens)

    @property
    def ends(self) -> dict[str, RequestEnd]:
        ends = [message for message in self.control.sent if isinstance(message, RequestEnd)]
        assert len(ends) == len({end.request_id for end in ends}), "a request ended twice"
        return {end.request_id: end for end in ends}

    @property
    def prompt_logprobs(self) -> dict[str, list[Logprobs]]:
        """Of every request, the pieces put together."""
        positions: dict[str, list[Logprobs]] = defaultdict(list)
        for message in self.control.sent:
            if isinstance(message, PromptLogprobs):
                positions[message.request_id] += message.positions
        return positions


def request(name: str, prompt: list[int], *, seed: int = 0, **fields) -> Request:
    """A request with `SamplingParams(**fields)`; `Request` fields by the name request_*."""
    own = {k.removeprefix("request_"): fields.pop(k) for k in list(fields) if "request_" in k}
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling=SamplingParams(**fields),
        seed=seed,
        **own,
    )
