# pyright: strict
"""What a draft checkpoint is, once its dialect has been understood. Knows no files, no tensors."""

import enum
from dataclasses import dataclass

from specserve.models.config import ModelSpec

DEEPSPEC = "DeepSpec"  # the dialect that is written here


class Layout(enum.Enum):
    """What slot j of a block, which stands at position s + j, predicts. Slot 0 is the anchor."""

    ANCHOR_FIRST = "anchor-first"  # the token after it: gamma = block_size
    FILL_IN = "fill-in"  # its own token, from slot 1 on: gamma = block_size - 1


class MarkovKind(enum.Enum):
    VANILLA = "vanilla"
    GATED = "gated"
    RNN = "rnn"


@dataclass(frozen=True)
class MarkovSpec:
    kind: MarkovKind
    rank: int


@dataclass(frozen=True)
class ConfidenceSpec:
    with_markov: bool  # the head also reads the previous token's Markov embedding


@dataclass(frozen=True)
class Gemma4Spec:
    """Where Gemma4's layers differ from the others'."""

    keys_are_values: bool  # no v_proj: values are the raw keys


@dataclass(frozen=True)
class BlockSpec:
    """A drafter of whole blocks: DSpark or DFlash, whatever wrote the checkpoint."""

    dialect: str  # for messages
    decoder: ModelSpec
    layout: Layout
    block_size: int
    mask_token_id: int
    feature_layers: tuple[int, ...]  # -1: embeddings
    num_target_layers: int | None  # None: the checkpoint does not say
    draft_vocab_size: int
    embeddings_stored: bool  # else embed_tokens and lm_head are the target's
    markov: MarkovSpec | None = None
    confidence: ConfidenceSpec | None = None
    gemma4: Gemma4Spec | None = None
    embedding_scale: float = 1.0
    logit_softcap: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of the architecture, for people."""
        return "dflash" if self.markov is None and self.confidence is None else "dspark"

    @property
    def gamma(self) -> int:
        return self.block_size - (self.layout is Layout.FILL_IN)

    @property
    def reduces_vocab(self) -> bool:
        return self.draft_vocab_size != self.decoder.vocab_size

    @property
    def shares_head(self) -> bool:
        """Whether its output head may be the target's, or (DeepSpec's) those rows of it."""
        return not self.reduces_vocab or self.dialect == DEEPSPEC


class FeaturesNorm(enum.Enum):
    """Whether an EAGLE-3 drafter normalises the target's residuals before it projects them."""

    NONE = "none"
    TOGETHER = "together"  # all layers' as one vector: `norm_before_fc`
    APART = "apart"  # each layer's: `fc_norm`


@dataclass(frozen=True)
class Eagle3Spec:
    """A one-layer decoder that continues the target's features, one token a step."""

    decoder: ModelSpec
    gamma: int
    feature_layers: tuple[int, ...]  # (): EAGLE-3's usual ones of the target
    num_target_layers: int | None  # None: the checkpoint does not say
    draft_vocab_size: int
    target_hidden_size: int
    longest: int  # that gamma may be
    dialect: str = DEEPSPEC  # for messages
    layer: str = "layers.0."  # what names of the layer's tensors begin with
    norm_before_residual: bool = False  # hidden_norm's output, not its input, is added to
    features_norm: FeaturesNorm = FeaturesNorm.NONE
    feeds_normed: bool = False  # the next step continues what `norm` made: EAGLE 3.1
    warnings: tuple[str, ...] = ()

    @property
    def reduces_vocab(self) -> bool:
        return self.draft_vocab_size != self.decoder.vocab_size

    @property
    def shares_head(self) -> bool:
        """Whether its output head may be the target's, or (DeepSpec's) those rows of it."""
        return not self.reduces_vocab or self.dialect == DEEPSPEC


@dataclass(frozen=True)
class LanguageModelSpec:
    """A model of the target's own architectures, used as a drafter.

    One that was cut out of its target may be without embedding and output head, which are the
    target's, and may draft a part of the target's tokens alone.
    """

    decoder: ModelSpec
    draft_vocab_size: int
    embeddings_stored: bool = True

    @property
    def reduces_vocab(self) -> bool:
        return self.draft_vocab_size != self.decoder.vocab_size


class LocalHeadKind(enum.Enum):
    GRU = "gru"
    MARKOV = "markov"


@dataclass(frozen=True)
class LocalHeadSpec:
    """A DeLS-Spec head; not a drafter, but an addition to one.

    alpha and beta are how strongly it and the prior count, if the checkpoint says so.
    """

    vocab_size: int
    embed_dim: int  # 0 without a recurrent part
    hidden_dim: int
    rank: int
    silu: bool  # activation between the two projections; else none
    through_target_head: bool  # logits come from the target's lm_head
    alpha: float | None = None
    beta: float | None = None


DraftSpec = BlockSpec | Eagle3Spec | LanguageModelSpec | LocalHeadSpec
