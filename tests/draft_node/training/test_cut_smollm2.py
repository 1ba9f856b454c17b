"""A drafter cut out of SmolLM2, which is a GGUF file: Llama, tied, with a large vocabulary."""

import json
from pathlib import Path

import pytest
import torch

from draft_node.training import draft_vocabulary
from draft_node.training.block_export import as_read, stored
from draft_node.training.export import copy_tokenizer
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.language_model_distilled import DistilledDecoder
from draft_node.training.language_model_export import write_language_model
from draft_node.training.provenance import RunRecord
from draft_node.training.pruning import cut, cut_shape
from specserve.drafters.load import load_drafter
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.drafters.weights import TargetWeights
from specserve.models.config import read_spec
from specserve.models.tokenizer_files import load_tokenizer, read_chat_template
from specserve.sampling.draft_sampler import Greedy
from specserve.settings.target_source import find_smollm2
from tests.specserve.drafters.checkpoints import options

TEXT = "The capital of France is Paris, and the capital of Italy is Rome. " * 12


@pytest.fixture(scope="module")
def file() -> Path:
    found = find_smollm2()
    assert found is not None, "`make setup` installs it: tests without it prove too little"
    return found


@pytest.mark.slow  # merges tokens of a large vocabulary
def test_its_tokenizer_stands_in_the_drafters_folder(file, tmp_path):
    copy_tokenizer(file, tmp_path)
    text = "Tell me: what is 12 + 30?\n\n  <|im_start|>"
    copied = load_tokenizer(tmp_path)
    assert copied.encode(text).ids == load_tokenizer(file).encode(text).ids
    assert read_chat_template(tmp_path) == read_chat_template(file)
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation["eos_token_id"] == list(read_spec(file).eos_token_ids)


@pytest.mark.slow  # reads all of the target
def test_three_of_its_layers_draft_with_its_own_head(file, tmp_path):
    target = FrozenTarget(file)
    token_ids = torch.tensor(load_tokenizer(file).encode(TEXT).ids)[None]
    ids = draft_vocabulary.most_frequent([token_ids[0].numpy()], 512, target.spec.vocab_size)
    layers, width = (0, 14, 29), 768
    model = DistilledDecoder(
        cut_shape(target.spec, layers, width), target, 1.0, owns_embeddings=False, draft_ids=ids
    )
    model.load_state_dict(cut(target, layers, width, token_ids, with_embeddings=False))
    tensors = stored(model.state_dict(), 8)
    model.load_state_dict(as_read(tensors))
    record = RunRecord("specserve train lm", "smollm2", 0, 0, 0.0)
    write_language_model(model, tensors, record, {"chat": 1.0}, tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size < 7e6

    drafter = load_drafter(tmp_path, TargetWeights.of(file), options(gamma=2))
    drafter.extend(ContextUpdate([0], [0], [40], token_ids[0, :40], None))
    found = drafter.draft(DraftBatch([0], token_ids[0, 40:41], keep_logits=True), Greedy())
    with torch.no_grad():
        expected = model(token_ids[:, :41])[:, -1]
    torch.testing.assert_close(found.logits[:, 0], expected, atol=2e-3, rtol=1e-3)
    assert torch.equal(found.token_ids[:, 0], ids[expected.argmax(-1)])
