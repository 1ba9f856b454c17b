import argparse
import json
from collections import Counter

import numpy as np
import pytest
from tokenizers import Tokenizer

from draft_node.training import text_source
from draft_node.training.batches import BatchSource, encode_stream
from draft_node.training.block_drafters import add_options
from draft_node.training.frozen_target import FrozenTarget
from draft_node.training.self_text import SelfTextConfig, weights_digest
from draft_node.training.text_source import TextConfig, gather, take_turns
from specserve.errors import InvalidField
from tests.draft_node.training.drafters import VOCAB, arguments, patterned_stream, write_target

TEXT = "some text to train on, and more of it; " * 200


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> FrozenTarget:
    return FrozenTarget(write_target(tmp_path_factory.mktemp("target")))


def test_a_folder_of_text_becomes_one_domain_and_its_end_is_held_out(target, tmp_path):
    (tmp_path / "text" / "deep").mkdir(parents=True)
    (tmp_path / "text" / "a.txt").write_text(TEXT)
    (tmp_path / "text" / "deep" / "b.md").write_text(TEXT)
    (tmp_path / "text" / "c.bin").write_bytes(b"\xff\xfe")
    config = TextConfig(tmp_path / "work", tmp_path / "text", self_share=0)
    source = gather(target, config)
    assert set(source.training) == set(source.held_out) == {"text"}
    whole = np.concatenate([source.training["text"], source.held_out["text"]])
    assert int((whole == 0).sum()) == 2
    assert len(source.held_out["text"]) == len(whole) // 20
    tokenizer = Tokenizer.from_file(str(target.folder / "tokenizer.json"))
    assert tokenizer.decode(whole.tolist()) == TEXT * 2


def test_what_is_held_out_of_little_text_holds_the_longest_block(target, tmp_path):
    tokenizer = Tokenizer.from_file(str(target.folder / "tokenizer.json"))
    (tmp_path / "a.txt").write_text(TEXT[:1600])
    training, held_out = text_source.own_text(tmp_path / "a.txt", tokenizer, "<|endoftext|>")
    assert len(held_out["text"]) == 96
    assert 1024 <= len(training["text"]) < 19 * 96


def test_the_target_writes_its_share_of_the_rows(target, tmp_path, monkeypatch, caplog):
    small = SelfTextConfig(rows=4, length=40, shortest_prompt=2, longest_prompt=8)
    monkeypatch.setattr(text_source, "SelfTextConfig", lambda **_: small)
    (tmp_path / "a.txt").write_text(TEXT)
    config = TextConfig(tmp_path, tmp_path / "a.txt", 0.25, self_tokens=300, held_out_tokens=300)
    with caplog.at_level("INFO"):
        source = gather(target, config)
    assert sum("4x40-0" in line for line in caplog.messages if "train-" in line) == 2
    assert set(source.training) == set(source.held_out) == {"text", "self-text"}
    assert len(source.training["self-text"]) == 320
    batches = BatchSource(source.training, 0, window=16, turns=source.turns)
    batches.next(40, 16)
    assert batches.cursors == {"text": 30, "self-text": 10}


def test_the_target_writes_anew_behind_other_text(target, tmp_path, monkeypatch):
    small = SelfTextConfig(rows=4, length=40, shortest_prompt=8, longest_prompt=8)
    monkeypatch.setattr(text_source, "SelfTextConfig", lambda **_: small)
    path = tmp_path / "a.txt"
    written = []
    for text in (TEXT, TEXT, "another text, which is not the one from before; " * 200):
        path.write_text(text)
        source = gather(target, TextConfig(tmp_path, path, self_tokens=100, held_out_tokens=100))
        written.append((source.training["self-text"], source.held_out["self-text"]))
    for first, again, other in zip(*written, strict=True):
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)


def test_the_help_tells_the_tokens_of_a_part():
    parser = argparse.ArgumentParser()
    parser.set_defaults(kind="dspark")
    add_options(parser)
    whole = SelfTextConfig()
    said = f"rounded up to rows of {whole.length}, and beyond {whole.rows * whole.length} to"
    assert said in " ".join(parser.format_help().split())


def test_every_domain_gets_a_row_of_the_fewest_tokens(target, tmp_path, monkeypatch):
    small = SelfTextConfig(rows=2, length=20, shortest_prompt=2, longest_prompt=8)
    monkeypatch.setattr(text_source, "SelfTextConfig", lambda **_: small)
    streams = {"code": patterned_stream(300), "prose": patterned_stream(300)}
    monkeypatch.setattr(text_source, "_corpus", lambda *_: (streams, streams))
    source = gather(target, TextConfig(tmp_path, self_tokens=1, held_out_tokens=1))
    assert len(source.training["self-code"]) == len(source.training["self-prose"]) == 20


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.7, 1.0])
def test_turns_keep_the_share_and_treat_domains_alike(share):
    turns = take_turns(("a", "b"), ("x", "y"), share)
    counts = Counter(turns)
    assert counts["x"] + counts["y"] == pytest.approx(share * len(turns))
    assert abs(counts["x"] - counts["y"]) <= 1
    assert abs(counts["a"] - counts["b"]) <= 1


@pytest.mark.parametrize(
    ("name", "problem"),
    [("none.txt", "no such file or folder"), ("", "no text files"), ("few.txt", "are too few")],
)
def test_text_that_cannot_be_used_is_named(name, problem, target, tmp_path):
    if name == "few.txt":
        (tmp_path / name).write_text("a few words")
    with pytest.raises(InvalidField, match=problem) as caught:
        gather(target, TextConfig(tmp_path, tmp_path / name))
    assert caught.value.field == "--text"


def test_chats_of_other_weights_are_said_to_be(target, tmp_path, caplog):
    for weights, count in ((None, 0), (weights_digest(target.folder), 0), ("0" * 64, 1)):
        (tmp_path / "data.json").write_text(json.dumps({"weights": weights}))
        caplog.clear()
        text_source.warn_of_others_chats(tmp_path, target.folder)
        assert len(caplog.records) == count
    assert "not written by the weights of target" in caplog.text


def test_streams_are_wide_enough_for_the_vocabulary(target):
    tokenizer = Tokenizer.from_file(str(target.folder / "tokenizer.json"))
    assert encode_stream(tokenizer, ["abc"], "<|endoftext|>").dtype == np.uint16
    tokenizer.add_tokens([f"<{i}>" for i in range(70_000)])
    stream = encode_stream(tokenizer, ["<69999>"], "<|endoftext|>")
    assert stream.tolist() == [VOCAB + 69_999, 0]


def test_the_target_writes_no_more_than_a_run_of_so_many_steps_reads(tmp_path):
    def wanted(*flags: str) -> int:
        return TextConfig.of(arguments("dspark", *flags)).self_tokens

    assert wanted("--steps", "3") == 3 * 2048 // 2
    assert wanted("--steps", "3", "--self-text", "1", "--tokens-per-step", "512") == 3 * 512
    assert wanted("--steps", "100000") == wanted("--minutes", "5") == 600_000
    assert wanted("--steps", "100000", "--self-tokens", "5000") == 5000
    assert wanted("--steps", "3", "--self-text", "0") == 1
