"""The seam between what is computed and how: one `Backend` a process, chosen once at its start.

A backend serves every operation below, on the devices and models it was chosen for. Where it has no
way of its own it hands the operation to the reference (`specserve.backends.torch`) and says so once
in the log. Nobody above this seam asks what device this is, whether something can be compiled, or
how many graphs were captured, and no operation answers None to mean "try another way".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity

from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.sampling import NO_TOKEN
from specserve.sampling.verification.batch import RowToVerify
from specserve.types import Logprobs

if TYPE_CHECKING:  # these packages are above the reference, and know this protocol
    from specserve.drafters.backbone import Backbone
    from specserve.drafters.block_passes import BlockPasses
    from specserve.drafters.chain_passes import ChainPasses
    from specserve.drafters.eagle3 import Eagle3Decoder
    from specserve.drafters.feature_chains import FeatureChains
    from specserve.drafters.protocol import SpeculationBatch
    from specserve.models.forward import Forward
    from specserve.models.parts import LayerParts
    from specserve.models.transformer import Transformer
    from specserve.sampling.draft_sampler import DraftSampling


@dataclass(frozen=True)
class VerifiedRows:
    """What verification found, on the host: one entry a row."""

    num_accepted: list[int]  # drafted tokens that stand
    next_tokens: list[int]  # recovery or bonus tokens, `NO_TOKEN` where nothing can be drawn
    has_bad_logits: list[bool]  # at the end of the accepted prefix, or beyond it
    has_broken_probs: list[bool]  # draft probabilities that are none; they counted as no draft
    # By row, of those that ask for them and have any: of every token of `tokens_of`, in order.
    logprobs: dict[int, list[Logprobs]] = field(default_factory=dict)

    @staticmethod
    def nothing(num_rows: int) -> "VerifiedRows":
        """To be filled in."""
        zeros, flags = [0] * num_rows, [False] * num_rows
        return VerifiedRows(zeros, list(zeros), flags, list(flags))

    def tokens_of(self, row: int, drafted: Sequence[int]) -> list[int]:
        """What follows the anchor of a row with these drafted tokens, as far as it can be drawn."""
        following = self.next_tokens[row]
        accepted = list(drafted[: self.num_accepted[row]])
        return accepted if following == NO_TOKEN else [*accepted, following]


# Hidden states [B, G, H], anchors [B] and how to draw, to a block of G tokens for each anchor.
DrawBlocks = Callable[[Tensor, Tensor, "DraftSampling"], "SpeculationBatch"]


class BlockDraws(Protocol):
    """What follows the parallel pass of one block drafter: logits, draws, confidences."""

    def draw(
        self, hidden: Tensor, anchor_ids: Tensor, sampling: "DraftSampling", *, keep_logits: bool
    ) -> "SpeculationBatch":
        """Of B blocks: hidden [B, G, H], anchor_ids [B]."""
        ...


class Backend(Protocol):
    """How one process computes. Everything is deterministic in the sense of its own device."""

    description: str  # the name, the device and why it was chosen, as `specserve info` prints it

    @property
    def name(self) -> str:
        """torch, cpu or cuda, as in the log and in `specserve info`."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def num_first_calls(self) -> int:
        """Calls so far that prepared later ones of their shape; what they took says nothing."""
        ...

    @property
    def is_asynchronous(self) -> bool:
        """Whether reading a result waits for all that the device was asked for before."""
        ...

    @property
    def neighbour_factor(self) -> float:
        """Times as long that a forward takes while a draft process is busy.

        Cores beside each other read the same memory; devices do not.
        """
        ...

    @property
    def turning_point(self) -> float:
        """Tokens at which reading weights and multiplying take equally long, roughly.

        Before anything was measured: a forward of n tokens takes 1 + n / this.
        """
        ...

    @property
    def profiler_activities(self) -> Sequence[ProfilerActivity]:
        """What torch's profiler has to record to see all that is computed."""
        ...

    def free_bytes(self) -> int:
        """Memory of the device that is free now. RuntimeError where nobody tells."""
        ...

    # --- what models are made of -----------------------------------------------------------------

    def target_parts(
        self, dtype: torch.dtype, *, deterministic: bool, is_stored_in_16_bits: bool
    ) -> "LayerParts":
        """Of a target that is served in `dtype`: its tensors are rounded to that.

        `deterministic`: a token's bits depend neither on its batch nor on the number of ranks.
        """
        ...

    def layer_parts(self, dtype: torch.dtype, *, input_bits: int = 32) -> "LayerParts":
        """Of a drafter that computes in `dtype`.

        `input_bits`: of weights and of what they are multiplied by, at least, where fewer are
        faster (8, 16 or 32). Nothing that is verified depends on the bits of a draft.
        """
        ...

    # --- the target ------------------------------------------------------------------------------

    def make_forward(
        self,
        model: "Transformer",
        *,
        num_blocks: int,
        block_size: int,
        deterministic: bool,
        kv_dtype: torch.dtype | None = None,
    ) -> "Forward":
        """A forward of `model` over a paged cache of its own, of the same kind on every rank.

        `kv_dtype`: keys and values are kept in it; None: in the one that is computed with.
        """
        ...

    def step_edges(self, *, deterministic: bool) -> Sequence[int]:
        """Numbers of tokens, ascending, to which such forwards are padded; () where none is.

        Of all rows together: a row is never padded. Beyond the last edge nothing is. What a forward
        was padded to in fact says `Forward.num_computed`.
        """
        ...

    def verify(
        self, logits: Tensor, rows: Sequence[RowToVerify], draft_probs: DraftProbs | None
    ) -> VerifiedRows:
        """As `specserve.sampling.verification.verify.verify`, which is the definition.

        A row without drafted tokens is sampled: `specserve.sampling.sampling.sample` defines that.
        `logits` [N, V] float32, row after row; `draft_probs`: one entry for each drafted token of
        rows under the ratio test. ValueError where the numbers of these do not agree. Rows whose
        parameters ask for log probabilities get those of their tokens.
        """
        ...

    # --- drafters --------------------------------------------------------------------------------

    def chain_passes(self, model: "Transformer", *, num_tokens: int, longest: int) -> "ChainPasses":
        """Passes of a language model over new contexts of `num_tokens` positions, over all rows.

        For chains of at most `longest` tokens.
        """
        ...

    def feature_chains(self, decoder: "Eagle3Decoder", *, num_tokens: int) -> "FeatureChains":
        """Steps of EAGLE-3's chains over new contexts of `num_tokens` entries, over all rows."""
        ...

    def block_passes(self, backbone: "Backbone", *, num_tokens: int) -> "BlockPasses":
        """Parallel passes of a block drafter over new contexts of `num_tokens`, over all rows."""
        ...

    def block_draws(self, draw: DrawBlocks, vocab_size: int) -> BlockDraws:
        """What `draw` does, in this backend's way; `vocab_size`: columns of its logits."""
        ...

    # --- the process -----------------------------------------------------------------------------

    def forget(self) -> None:
        """Give back what later calls of known shapes would use; before ranks part."""
        ...
