"""Tiny decoders on one thread, so that these tests take seconds."""

from collections.abc import Iterator

import pytest

from draft_node.training.decoder import DecoderConfig
from draft_node.training.trainer import num_threads


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with num_threads(1):
        yield


@pytest.fixture
def tiny() -> DecoderConfig:
    return DecoderConfig(
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        max_position_embeddings=64,
    )
