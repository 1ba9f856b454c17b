"""Whoever comes from another server is told what to type here, and it is something one can type."""

import shlex

import pytest

from specserve.cli import build_parser
from specserve.commands.foreign_flags import refuse_foreign_flags
from specserve.errors import InvalidField
from specserve.settings.config import known_keys
from specserve.settings.foreign_names import FOREIGN_FLAGS

LAUNCH = build_parser().commands["launch"].flags


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("launch --tensor-parallel-size 2", "type --topology 2+0"),
        ("launch -tp=4", "type --topology 4+0"),
        ("launch --tp-size", "type --topology T+0"),
        ("launch --model a/b", "type --target a/b"),
        ("launch -m 'my model'", "type --target 'my model'"),
        ("info --model-path a/b", "type --target a/b"),
        ("launch --max-num-seqs 8", "type --max-batch-rows 8"),
        ("launch --max-num-batched-tokens 8", "type --max-batch-tokens 8"),
        ("launch --gpu-memory-utilization .9", "type --kv-memory SIZE"),
        ("launch --mem-fraction-static .9", "type --kv-memory SIZE"),
        ("launch --served-model-name x", "type --name x"),
        ("launch --ctx-size 4096", "type --max-model-len 4096"),
        ("launch --draft-max 5", "type --gamma 5"),
        ("launch --num-speculative-tokens 5", "type --gamma 5"),
        ("launch --num-gpu-blocks-override 32", "type --kv-memory SIZE, such as 8GiB: in bytes"),
        ("launch --draft-p-min .5", "type --min-survival .5"),
        ("launch --enforce-eager --port 0", "type --no-cuda-graphs"),
        (
            "launch --speculative-config '{\"method\": \"ngram\", \"num_speculative_tokens\": 5}'",
            "type --drafter ngram --gamma 5",
        ),
        (
            "launch --speculative-config '{\"model\": \"a/b\"}'",
            "type --drafter a/b --gamma TOKENS",
        ),
        ("launch --speculative-config", "type --drafter FOLDER"),
        ("launch --trust-remote-code", "leave it out"),
        ("launch --enable-auto-tool-choice", "leave it out: tools are served"),
        ("launch --reasoning-parser qwen3", "leave it out: what a model thinks is part of"),
        ("launch --chat-template x.jinja", "put chat_template.jinja into the model's folder"),
        ("launch --api-key secret", "type --api-key-file FILE, with a key a line"),
        ("launch --ssl-certfile cert.pem", "type --tls-cert cert.pem"),
        ("launch --ssl-key-file key.pem", "type --tls-key key.pem"),
        ("generate --max-new-tokens 5 x", "type --max-tokens 5"),
        ("generate --prompt x", "the prompt stands alone"),
        ("chat --base-url x:1", "type --connect x:1"),
    ],
)  # fmt: skip
def test_a_flag_of_another_server_is_answered(words, told, refused):
    command, flag, *rest = shlex.split(words)
    answer = refused(command, flag, *rest)
    assert answer.startswith(f"{flag.partition('=')[0]}: is no flag here; {told}")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("launch --half-weights", "leave it out: weights that are stored in 16 bits stay so"),
        ("generate --no-half-weights x", "leave it out: weights that are stored in 16 bits"),
        ("launch --collectives nccl", "leave it out: ranks meet over nccl on GPUs of their own"),
        ("launch --fan-out-rule=uniform", "leave it out: blocks are shared out by measured"),
        ("launch --wave 4", "leave it out: as many blocks are drafted together"),
        ("launch --block-size 32", "leave it out: KV blocks have 16 tokens"),
        ("launch --page-size 32", "leave it out: KV blocks have 16 tokens"),
        ("launch --max-logprobs 5", "leave it out: a request may ask for up to 20 log prob"),
        ("launch --num-blocks 5", "write engine.kv_memory (--kv-memory SIZE"),
    ],
)
def test_a_flag_that_was_ours_says_what_to_do_instead(words, told, refused):
    command, flag, *rest = shlex.split(words)
    answer = refused(command, flag, *rest)
    assert answer.startswith(f"{flag.partition('=')[0]}: is no setting any more; {told}")


def test_flags_of_other_commands_are_theirs():
    own = build_parser().commands["calibrate"].flags
    refuse_foreign_flags(["--num-kept", "16"], own)
    refuse_foreign_flags(["--wave", "16"], own)


def test_every_name_leads_to_a_setting_and_is_none_of_ours():
    assert set(FOREIGN_FLAGS) <= set(known_keys())
    for flag in (flag for flags in FOREIGN_FLAGS.values() for flag in flags):
        assert flag not in LAUNCH
        # A shortened flag of ours would have worked before.
        longer = [ours for ours in LAUNCH if ours.startswith(flag) and flag.startswith("--")]
        assert len(longer) != 1, (flag, longer)
        with pytest.raises(InvalidField, match=r"is no flag here; (type|leave it out)"):
            refuse_foreign_flags([flag, "1"], LAUNCH)


def test_what_is_advised_can_be_typed():
    for flag in (flag for flags in FOREIGN_FLAGS.values() for flag in flags):
        with pytest.raises(InvalidField) as caught:
            refuse_foreign_flags([flag, "1"], LAUNCH)
        typed = str(caught.value).partition("; type ")[2].split()
        assert not typed or typed[0] in LAUNCH, caught.value


def test_prompts_and_what_follows_two_dashes_are_no_flags():
    own = build_parser().commands["generate"].flags
    refuse_foreign_flags(["-m is a flag", "-", "--stop=-m", "--", "-m"], own)
    refuse_foreign_flags(["--name", "x", "--n", "2", "--drafter", "y"], own)
