"""The command line that a model card names."""

import argparse
import shlex

import pytest

from draft_node.training import block_drafters, language_model, local_head
from draft_node.training.options import command_line

EVERYWHERE = "--target t --text 'my texts' --self-text 0.25 --seed 7 --device cuda --rate 0.3"
CASES = [
    (
        "dspark",
        block_drafters,
        "--steps 9 --layers 3 --gamma 5 --feature-layers 1,2 --mask-token-id 4 --markov gated "
        "--rank 8 --confidence hidden --max-gap 8 --init old --anchors 8 --tokens-per-step 512 "
        "--self-tokens 50000 --compile",
    ),
    ("eagle3", block_drafters, "--minutes 2.5 --anchors 8 --self-tokens 50000"),
    (
        "local-head",
        local_head,
        "--minutes 1 --head gru --width 32 --rank 8 --through-target-head --window 8 "
        "--fuse-with d/flash --tokens-per-step 512",
    ),
    (
        "lm",
        language_model,
        "--steps 3 --cut 0 2 4 --intermediate 64 --hidden 32 --heads 2 --kv-heads 1 --head-dim 16 "
        "--layers 3 --tokens-per-step 512 --distill 0.123456789 --own-embeddings --draft-vocab 99 "
        "--data chats --store-bits 8",
    ),
]


def parse(kind, module, words):
    parser = argparse.ArgumentParser()
    parser.set_defaults(kind=kind)
    module.add_options(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(("kind", "module", "flags"), CASES)
def test_a_command_says_everything_that_is_not_by_default(
    kind, module, flags, tmp_path, monkeypatch
):
    (tmp_path / "t").mkdir()
    monkeypatch.chdir(tmp_path)
    words = [*shlex.split(f"{EVERYWHERE} {flags}"), "--out", "drafter"]
    given = parse(kind, module, words)
    command = command_line(given, module.add_options)
    assert command.startswith(f"specserve train {kind} ")
    assert parse(kind, module, shlex.split(command)[3:]) == given


def test_a_command_says_neither_defaults_nor_where_it_was_run():
    words = ["--out", "/tmp/drafter", "--work", "w", "--threads", "1", "--restart"]
    given = parse("dflash", block_drafters, words)
    assert (
        command_line(given, block_drafters.add_options)
        == "specserve train dflash --minutes 15 --out drafter"
    )
