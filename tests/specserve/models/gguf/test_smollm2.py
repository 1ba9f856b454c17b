"""SmolLM2 as its package brings it, beside transformers reading the same file.

transformers does not read how a GGUF file cuts text before merging: it has GPT-2's way for all.
SmolLM2 takes digits one by one, so lines with several spaces before a digit differ there, and only
those; with the file's own way they do not.
"""

import asyncio
import itertools
import re
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers as pre

from specserve.api.call import ChatMessage
from specserve.api.tokenizer import TextTokenizer
from specserve.client import Client
from specserve.models.attention import AttentionBatch
from specserve.models.checkpoint import Checkpoint
from specserve.models.tokenizer_files import load_tokenizer
from specserve.settings.target_source import find_smollm2
from tests.backends.chosen import BACKEND
from tests.exactness.workload import prompts
from tests.specserve.models.checkpoints import load

NUM_TOKENS = 48
TIE = 1e-3  # logits: what two orders of summing float32 may differ by
CHATS = (
    [("user", "What is the capital of France?")],
    [("system", "You are terse."), ("user", "Hi"), ("assistant", "Hello."), ("user", "Bye\n")],
)


@pytest.fixture(scope="module")
def file() -> Path:
    found = find_smollm2()
    assert found is not None, "`make setup` installs it: tests without it prove too little"
    return found


@pytest.fixture(scope="module")
def theirs(file):
    """transformers' model and tokenizer."""
    transformers = pytest.importorskip("transformers")
    where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(**where)


def lines(count: int) -> list[str]:
    """Of Python's own sources and documentation: code, prose, numbers, other alphabets."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts = (path.read_text(errors="replace") for path in sorted(folder.glob("[a-z]*.py")))
    tests = (folder / "test" / "test_unicodedata.py", folder / "test" / "test_textwrap.py")
    others = (path.read_text(errors="replace") for path in tests if path.exists())
    every = itertools.chain(others, texts)
    return list(itertools.islice((line for text in every for line in text.split("\n")), count))


def lines_of_prose(count: int) -> list[str]:
    """Beginnings for the model to go on with."""
    texts = (text for text in prompts() if "def " not in text)
    return [text[:120] for text in itertools.islice(texts, count)]


def beyond_ties(file: Path, model, address: str, num_prompts: int) -> list[str]:
    """Prompts whose greedy text differs from transformers' where its two logits are no tie."""
    tokenizer = load_tokenizer(file)
    differing = []
    with Client(address) as client:
        for text in lines_of_prose(num_prompts):
            ids = tokenizer.encode(text).ids
            served = client.generate(ids, temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
            ours = list(served.samples[0].token_ids)
            with torch.inference_mode():
                logits = model(torch.tensor([ids + ours])).logits[0, len(ids) - 1 : -1]
            # At every place what was served is the likeliest token behind what was served so far.
            behind = logits.max(-1).values - logits[torch.arange(len(ours)), torch.tensor(ours)]
            if float(behind.max()) > TIE:
                differing.append(f"{text[:40]!r}: {float(behind.max()):.4f}")
    return differing


@pytest.mark.slow
def test_greedy_text_is_that_of_transformers_up_to_ties(file, theirs, start_service):
    address = start_service("--target", str(file), "--dtype", "float32", "--max-model-len", "128")
    assert beyond_ties(file, theirs[0], address, num_prompts=6) == []


@pytest.mark.slow
def test_ten_thousand_lines_have_the_ids_of_transformers(file, theirs):
    ours, tokenizer = load_tokenizer(file), theirs[1].backend_tokenizer
    texts = [*lines(10_000), "zwölf Boxkämpfer  7", "東京は2024年 🙂", "\r\n\t 3.14", "e\u0301"]
    assert len(texts) > 10_000
    expected = [e.ids for e in tokenizer.encode_batch(texts)]
    found = [e.ids for e in ours.encode_batch(texts)]
    differing = [t for t, a, b in zip(texts, found, expected, strict=True) if a != b]
    assert all(re.search(r"\s\s\d", text) for text in differing)
    before = tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = pre.Sequence([pre.Digits(True), pre.ByteLevel(False)])
    try:
        assert [e.ids for e in tokenizer.encode_batch(texts)] == found
    finally:
        tokenizer.pre_tokenizer = before


@pytest.mark.slow
@pytest.mark.parametrize("chat", CHATS)
def test_chats_are_rendered_as_by_transformers(file, theirs, chat):
    tokenizer = TextTokenizer(file)
    try:
        ours = asyncio.run(tokenizer.encode_chat([ChatMessage(*turn) for turn in chat]))
    finally:
        tokenizer.close()
    turns = [{"role": role, "content": content} for role, content in chat]
    expected = theirs[1].apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert ours == theirs[1].backend_tokenizer.encode(expected, add_special_tokens=False).ids


@pytest.mark.slow
def test_weights_and_logits_are_those_of_transformers(file, theirs):
    model = theirs[0]
    with Checkpoint(file) as checkpoint:
        for name, weight in model.state_dict().items():
            if name != "lm_head.weight":  # tied
                assert torch.equal(checkpoint.read(name.removeprefix("model.")), weight), name
    text = "The capital of France is Paris, and the capital of Germany is"
    ids = torch.tensor(load_tokenizer(file).encode(text).ids)
    with torch.inference_mode():
        expected = model(ids[None]).logits[0]
    ours = load(file, num_positions=64)
    forward = BACKEND.make_forward(ours, num_blocks=5, block_size=16, deterministic=True)
    forward.plan(AttentionBatch(np.array([len(ids)]), np.array([len(ids)]), [np.arange(1, 5)]))
    hidden, _ = forward.run(ids)
    logits = ours.logits(hidden)
    assert torch.allclose(logits, expected, atol=2e-4, rtol=1e-4)
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))
