"""Cases 8, 18, 29, 31 and 32: model folders as they are published, and those that are refused."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from specserve.api.call import ChatMessage
from tests.cases.apis import APIS, GRPC, HTTP, Service, ask, ask_plainly, posted, refusal
from tests.cases.model_folders import (
    BOS,
    BOS_ID,
    NUM_TOKENS,
    ORIGINAL_LEN,
    PADDING,
    change,
    reference_logits,
    write_llama,
    write_model,
    write_named,
)
from tests.cases.parts import some
from tests.cases.serving import assert_healthy, serving
from tests.golden import Session
from tests.reliability.scale import is_long, scaled
from tests.specserve.models.checkpoints import LLAMA, QWEN3, load

SPECULATING = ("--speculation", "sync", "--drafter", "ngram", "--min-survival", "0")
CHAT = [
    ChatMessage("user", "What is this?"),
    ChatMessage("assistant", "A test."),
    ChatMessage("user", "Of what?"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama") / "model")


@pytest.fixture(scope="module")
def llama(folder: Path) -> Iterator[Service]:
    with serving("--target", str(folder), *SPECULATING) as service:
        yield service


def case(number: int) -> pytest.MarkDecorator:
    """Over both APIs, or in a plain run over one of them."""
    return pytest.mark.parametrize("api", APIS if is_long() else [APIS[number // 2 % 2]])


# --- case 18 ---------------------------------------------------------------------------------


@pytest.mark.slow
@case(18)
def test_rows_that_pad_the_vocabulary_are_never_answered(api: str, llama: Service):
    assert llama.client.model_info().vocab_size == NUM_TOKENS
    fields = {"temperature": 100, "ignore_eos": True, "seed": 18, "logprobs": 20}
    prompt = list(range(8, 40))
    for n, max_tokens in ((8, scaled(250)), (1, 100)):
        answer = ask(api, llama, prompt, **fields, n=n, max_tokens=max_tokens)
        assert answer == ask_plainly(llama, prompt, **fields, n=n, max_tokens=max_tokens)
        ids = {i for sample in answer.samples for i in sample.token_ids}
        named = {i for s in answer.samples for entry in s.entries for i in entry.top_ids}
        assert len(ids) > 90
        assert max(ids | named) < NUM_TOKENS
    assert_healthy(llama)


@case(18)
def test_rows_that_pad_the_vocabulary_are_refused_in_requests(api: str, llama: Service):
    """The tail of case 17."""
    padded = NUM_TOKENS + PADDING - 1
    problem = f"token id {padded} is not in the vocabulary of {NUM_TOKENS} tokens"
    field = "token_ids" if api == GRPC else "prompt"
    assert refusal(api, llama, [9, padded]) == f"{field}: {problem}"
    assert refusal(api, llama, [9], stop_token_ids=[padded]) == f"stop_token_ids: {problem}"
    assert refusal(api, llama, [9], logit_bias={padded: 1.0}) == f"logit_bias: {problem}"
    assert_healthy(llama)


# --- case 29 ---------------------------------------------------------------------------------


def prompt_ids(service: Service, path: str, **body: object) -> list[int]:
    """As HTTP tells them."""
    wish = {"max_tokens": 1, "return_token_ids": True}
    with posted(service, wish | body, path) as response:
        return json.loads(response.read())["choices"][0]["prompt_token_ids"]


@pytest.mark.slow
@case(29)
def test_a_conversation_begins_once(api: str, llama: Service, folder: Path):
    """As its template writes it: what the tokenizer adds to texts is not added to that."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    turns = "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in CHAT)
    written = f"{BOS}{turns}<|im_start|>assistant\n"
    expected = tokenizer.encode(written, add_special_tokens=False).ids
    assert expected.count(BOS_ID) == 1
    if api == GRPC:
        assert ask(api, llama, CHAT, max_tokens=1).num_prompt_tokens == len(expected)
    else:
        messages = [{"role": m.role, "content": m.content} for m in CHAT]
        assert prompt_ids(llama, "/v1/chat/completions", messages=messages) == expected


@pytest.mark.slow
@case(29)
def test_a_text_begins_with_what_the_tokenizer_adds(api: str, llama: Service, folder: Path):
    """And with it twice where the text has it already: as is said in the proto."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    words = tokenizer.encode("import os", add_special_tokens=False).ids
    for text, num_bos in (("import os", 1), (f"{BOS}import os", 2)):
        expected = [BOS_ID] * num_bos + words
        assert ask(api, llama, text, max_tokens=1).num_prompt_tokens == len(expected)
        if api == HTTP:
            assert prompt_ids(llama, "/v1/completions", prompt=text) == expected
        fields = {"temperature": 0, "max_tokens": 8}
        assert ask(api, llama, text, **fields) == ask(api, llama, expected, **fields)


@pytest.mark.slow
@case(19)
def test_no_text_is_a_prompt_where_the_tokenizer_adds_a_token(api: str, llama: Service):
    """The tail of case 19, as is said in the proto."""
    assert ask(api, llama, "", max_tokens=2, ignore_eos=True).num_prompt_tokens == 1


# --- case 31 ---------------------------------------------------------------------------------

PROMPT = list(range(8, 60, 3))


def write_heads(root: Path) -> dict[str, Path]:
    """Tied and untied, with a head in the file and without."""
    folders = {
        "tied": write_model(root / "tied", QWEN3),
        "tied, stored": write_model(root / "stored", QWEN3),
        "tied, another": write_model(root / "another", QWEN3),
        "untied": write_model(root / "untied", QWEN3, tie_word_embeddings=False),
        "untied, without": write_model(root / "without", QWEN3, tie_word_embeddings=False),
    }
    paths = {name: folder / "model.safetensors" for name, folder in folders.items()}
    tensors = load_file(paths["tied"])
    head = tensors["model.embed_tokens.weight"].clone()
    save_file({**tensors, "lm_head.weight": head}, paths["tied, stored"])
    save_file({**tensors, "lm_head.weight": 0 * head}, paths["tied, another"])
    tensors = load_file(paths["untied"])
    del tensors["lm_head.weight"]
    save_file(tensors, paths["untied, without"])
    return folders


def logits_of(folder: Path, token_ids: list[int]) -> torch.Tensor:
    session = Session(load(folder), len(token_ids))
    return session.logits(session.feed(torch.tensor(token_ids))[0])


@pytest.mark.slow
def test_heads_are_tied_where_the_configuration_says_so(tmp_path: Path):
    folders = write_heads(tmp_path)
    names = ("tied", "tied, stored", "untied")
    tied, stored, untied = (logits_of(folders[name], PROMPT) for name in names)
    assert torch.equal(tied, stored)
    assert not torch.allclose(tied, untied, atol=0.1)
    for name, logits in zip(names, (tied, stored, untied), strict=True):
        expected = reference_logits(folders[name], PROMPT)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


# --- case 32 ---------------------------------------------------------------------------------

LINEAR = {"factor": 2.0}
SPELLINGS = {
    "type": {"rope_scaling": {"type": "linear", **LINEAR}},
    "rope_type": {"rope_scaling": {"rope_type": "linear", **LINEAR}},
    "rope_parameters": {
        "rope_scaling": None,
        "rope_theta": None,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 500000.0, **LINEAR},
    },
}


@pytest.mark.slow
@case(32)
def test_scaled_positions_are_those_of_the_reference(
    api: str, llama: Service, folder: Path, tmp_path: Path
):
    """Prompt and answer go far beyond the positions of before scaling."""
    prompt = list(range(100, 100 + 2 * ORIGINAL_LEN))
    fields = {"temperature": 0, "ignore_eos": True, "max_tokens": 40}
    ids = ask(api, llama, prompt, **fields).only.token_ids
    assert shortfall(reference_logits(folder, [*prompt, *ids]), ids) < 1e-4
    unscaled = shutil.copytree(folder, tmp_path / "unscaled")
    change(unscaled / "config.json", rope_scaling=None)
    assert shortfall(reference_logits(unscaled, [*prompt, *ids]), ids) > 0.01


def shortfall(logits: torch.Tensor, ids: tuple[int, ...]) -> float:
    """By how much one of the greedy `ids`, which come last, is less likely than another token."""
    logits = logits[-1 - len(ids) : -1, :NUM_TOKENS]
    chosen = logits.gather(1, torch.tensor(ids)[:, None])[:, 0]
    return float((logits.amax(1) - chosen).max())


@pytest.mark.slow
def test_scaling_means_the_same_in_every_spelling(tmp_path: Path):
    def logits(name: str, **changes: object) -> torch.Tensor:
        folder = write_named(tmp_path / name, LLAMA, **changes)
        found = logits_of(folder, PROMPT)
        torch.testing.assert_close(found, reference_logits(folder, PROMPT), atol=1e-4, rtol=0)
        return found

    first, *others = [logits(name, **changes) for name, changes in SPELLINGS.items()]
    assert all(torch.equal(other, first) for other in others)
    unscaled = logits("none", rope_scaling=None)
    by_one = logits("one", rope_scaling={"rope_type": "linear", "factor": 1.0})
    assert torch.equal(by_one, unscaled)
    assert not torch.allclose(first, unscaled, atol=0.01)


# --- folders that are refused ----------------------------------------------------------------


def write_refused(root: Path) -> dict[str, tuple[list[str], str]]:
    """What is launched, and what the last line says of it."""
    heads = write_heads(root)
    headless, doubtful = heads["untied, without"], heads["tied, another"]
    sentencepiece = write_model(root / "sentencepiece", LLAMA)
    spaces = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    decoder = {"type": "Sequence", "decoders": [spaces, {"type": "Fuse"}]}
    change(sentencepiece / "tokenizer.json", decoder=decoder)
    longrope = {"rope_type": "longrope", "factor": 4.0}
    unknown = write_model(root / "longrope", LLAMA)
    change(unknown / "config.json", rope_scaling=longrope)
    return {
        "case 8": (["--target", str(sentencepiece)], "is not byte-level, the only kind served"),
        "case 31": (["--target", str(headless)], "lm_head.weight is missing"),
        "case 31, two heads": (
            ["--target", str(doubtful)],
            "lm_head.weight is not embed_tokens.weight",
        ),
        "case 31, of a drafter": (
            ["--speculation", "sync", "--drafter", str(headless)],
            "lm_head.weight is missing",
        ),
        "case 32": (["--target", str(unknown)], "rope_scaling.rope_type: 'longrope'"),
    }


@pytest.mark.slow
def test_folders_that_cannot_be_served_are_refused_in_one_line(tmp_path: Path):
    words = [sys.executable, "-m", "specserve", "launch", "--target", "tiny", "--port", "0"]
    words += ["--no-http", "--oversubscribe"]
    refused = dict(some(list(write_refused(tmp_path).items()), 2))
    launched = {
        name: subprocess.Popen(
            [*words, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for name, (flags, _) in refused.items()
    }
    for name, process in launched.items():
        _, told = process.communicate(timeout=120)
        assert process.returncode == 2, (name, told)
        assert refused[name][1] in told.splitlines()[-1], name
