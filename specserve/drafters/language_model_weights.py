"""A language model that drafts: its tensors, and those that it leaves to its target.

One that was cut out of its target reads that one's embedding and output head, or the rows of it
that it has ids for, and is stored without them.
"""

from torch import Tensor

from specserve.drafters.spec import LanguageModelSpec
from specserve.drafters.weights import (
    EMBEDDING,
    LM_HEAD,
    TABLE_DTYPES,
    DraftWeights,
    decoder_layer,
    draft_vocabulary,
    table_shapes,
)
from specserve.models.checkpoint import Checkpoint
from specserve.models.loader import expected_tensors, refuse_another_head
from specserve.models.parallel import TensorParallel
from specserve.models.parts import Linear
from specserve.models.rope import RotaryTable
from specserve.models.transformer import Transformer


def check_language_model(checkpoint: Checkpoint, spec: LanguageModelSpec) -> None:
    """Raise `Unsupported` unless the tensors are those of `spec`, and no others."""
    decoder, shapes = spec.decoder, expected_tensors(spec.decoder)
    if spec.embeddings_stored:
        checkpoint.check(shapes, (LM_HEAD,) if decoder.tie_word_embeddings else ())
        if decoder.tie_word_embeddings:
            refuse_another_head(checkpoint)
        return
    del shapes[EMBEDDING], shapes[LM_HEAD]
    if spec.reduces_vocab:
        shapes |= table_shapes(spec.draft_vocab_size, decoder.vocab_size)
    checkpoint.check(shapes, tables=TABLE_DTYPES)


def load_language_model(
    weights: DraftWeights, spec: LanguageModelSpec, num_positions: int
) -> tuple[Transformer, Tensor | None]:
    """The model of a checked checkpoint, for `num_positions` of a row or as many as it has.

    And the target id of each of its logits, [DV]; None where they are those of all tokens.
    """
    decoder = spec.decoder
    target_ids = draft_vocabulary(weights, decoder.vocab_size)
    embedding = weights.embedding()
    model = Transformer(
        decoder,
        embedding=embedding,
        layers=[
            decoder_layer(weights, decoder, index, f"layers.{index}.")
            for index in range(decoder.num_layers)
        ],
        final_norm=weights.norm("norm.weight", decoder.rms_norm_eps),
        lm_head=_lm_head(weights, spec, embedding, target_ids),
        rotary=RotaryTable(
            decoder.rope,
            head_dim=decoder.head_dim,
            num_positions=min(num_positions, decoder.max_position_embeddings),
            dtype=weights.dtype,
            device=weights.device,
        ),
        parallel=TensorParallel(),
    )
    return model, target_ids


def _lm_head(
    weights: DraftWeights, spec: LanguageModelSpec, embedding: Tensor, target_ids: Tensor | None
) -> Linear:
    """The target's where the model has none; a complete model's may be its embedding."""
    if not spec.embeddings_stored:
        return weights.lm_head(target_ids)
    tied = spec.decoder.tie_word_embeddings
    return weights.packed(embedding) if tied else weights.linear(LM_HEAD)
