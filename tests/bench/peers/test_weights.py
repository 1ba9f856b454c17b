"""Forms of one model file: the same numbers rounded once, the same tokens, the same model."""

import os

import gguf
import pytest
import torch
import transformers

from bench.peers.weights import BFLOAT16, FLOAT16, Weights, write_gguf
from specserve.errors import Unsupported
from specserve.models.checkpoint import Checkpoint
from specserve.models.config import read_spec
from specserve.models.gguf.container import GgufFile, Numbers, Strings
from specserve.models.tokenizer_files import load_tokenizer, read_chat_template
from tests.bench.peers.small_gguf import write_small_gguf

_DTYPES = {BFLOAT16: torch.bfloat16, FLOAT16: torch.float16}


@pytest.fixture(name="model", params=["Q8_0", "Q4_1"])
def _model(tmp_path, request):
    path = tmp_path / "small.gguf"
    write_small_gguf(path, kind=gguf.GGMLQuantizationType[request.param])
    return path


@pytest.mark.parametrize("dtype", _DTYPES)
def test_matrices_of_the_gguf_copy_are_those_of_the_file_rounded_once(model, tmp_path, dtype):
    copy = tmp_path / "copy.gguf"
    write_gguf(model, copy, dtype)
    with Checkpoint(model) as before, Checkpoint(copy) as after:
        assert set(before.names()) == set(after.names())
        for name in before.names():
            numbers, found = before.read(name), after.read(name)
            if numbers.dim() > 1:
                assert found.dtype == _DTYPES[dtype]
                assert torch.equal(found, numbers.to(_DTYPES[dtype])), name
            else:  # what was in float32 stays so
                assert torch.equal(found, numbers), name


def test_all_else_of_the_gguf_copy_is_that_of_the_file(model, tmp_path):
    copy = tmp_path / "copy.gguf"
    write_gguf(model, copy, BFLOAT16)
    with GgufFile(model) as before, GgufFile(copy) as after:
        types = "general.file_type"
        assert after.metadata[types] == gguf.LlamaFileType.MOSTLY_BF16
        kept = before.metadata.keys() - {types}
        assert kept == after.metadata.keys() - {types}
        for key in kept:
            one, other = before.metadata[key], after.metadata[key]
            if isinstance(one, Strings | Numbers):
                one, other = one.read(), other.read()
            assert one == other, key
    assert load_tokenizer(copy).to_str() == load_tokenizer(model).to_str()


def test_the_folder_has_the_rounded_numbers_tokens_and_template_of_the_file(model, tmp_path):
    folder = Weights(model, tmp_path / "cache").folder()
    with Checkpoint(model) as before, Checkpoint(folder) as after:
        assert set(before.names()) == set(after.names())
        for name in before.names():
            assert torch.equal(after.read(name), before.read(name).to(torch.bfloat16)), name
    text = "the naïve cat <|user|> thaws\n\n  it"
    assert load_tokenizer(folder).encode(text).ids == load_tokenizer(model).encode(text).ids
    assert read_chat_template(folder)[0] == read_chat_template(model)[0]


def test_transformers_reads_the_same_model_from_the_folder_as_from_the_file(model, tmp_path):
    """Its own reader of GGUF knows nothing of ours: rows in a wrong order would show."""
    folder = Weights(model, tmp_path / "cache").folder()
    load = transformers.AutoModelForCausalLM.from_pretrained
    theirs = load(model.parent, gguf_file=model.name, dtype=torch.float32).state_dict()
    ours = load(folder, dtype=torch.bfloat16)
    assert ours.state_dict().keys() == theirs.keys()
    for name, numbers in ours.state_dict().items():
        assert torch.equal(numbers, theirs[name].to(torch.bfloat16)), name
    config, spec = ours.config, read_spec(model)
    assert config.head_dim == spec.head_dim
    assert config.rms_norm_eps == pytest.approx(spec.rms_norm_eps)
    assert config.rope_parameters["rope_theta"] == spec.rope.theta


def test_a_form_is_made_once_and_anew_for_another_file(model, tmp_path):
    cache = tmp_path / "cache"
    first = Weights(model, cache).gguf_file(BFLOAT16)
    made_ns = first.stat().st_mtime_ns
    assert Weights(model, cache).gguf_file(BFLOAT16) == first
    assert first.stat().st_mtime_ns == made_ns
    os.utime(model, ns=(1, 1))
    assert Weights(model, cache).gguf_file(BFLOAT16) != first


def test_what_was_stopped_half_way_is_made_again(model, tmp_path, monkeypatch):
    weights = Weights(model, tmp_path / "cache")
    with monkeypatch.context() as patched:
        patched.setattr("bench.peers.weights.copy_tokenizer", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            weights.folder()
    folder = weights.folder()
    assert load_tokenizer(folder).get_vocab_size() == load_tokenizer(model).get_vocab_size()


def test_a_target_that_is_a_folder_is_used_as_it_is_and_has_no_gguf_form(tmp_path):
    weights = Weights(tmp_path, tmp_path / "cache")
    assert weights.folder() == tmp_path
    with pytest.raises(Unsupported, match="GGUF"):
        weights.gguf_file(BFLOAT16)


def test_rotary_scaling_that_the_folder_would_lose_is_refused(tmp_path):
    path = tmp_path / "scaled.gguf"
    write_small_gguf(path, factor=2.0)
    with pytest.raises(Unsupported, match="linear"):
        Weights(path, tmp_path / "cache").folder()


def _interrupt(*_):
    raise KeyboardInterrupt
