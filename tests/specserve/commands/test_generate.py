"""`specserve generate` against a real service, and with one of its own."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file


def test_a_prompt_from_stdin_has_an_end(specserve, monkeypatch):
    monkeypatch.setattr("specserve.commands.generate._MAX_STDIN_BYTES", 10)
    result = specserve("generate", "-", stdin="x" * 11)
    assert result.returncode == 2
    assert result.stderr == "specserve: prompt: stdin has more than 10 bytes\n"


@pytest.mark.slow
def test_generate_streams_the_text_that_json_reports(service, specserve):
    words = ("--connect", service, "--max-tokens", "12", "--seed", "5", "def main():")
    streamed = specserve("generate", *words)
    assert streamed.returncode == 0, streamed.stderr
    document = json.loads(specserve("generate", "--json", *words).stdout)
    assert streamed.stdout == document["text"] + "\n"
    assert len(document["token_ids"]) == document["usage"]["num_generated_tokens"] == 12
    assert document["finish_reason"] == "length"
    assert document["timings"]["total_s"] > 0


@pytest.mark.slow
def test_who_gets_no_text_is_told_where_questions_are_asked(service, specserve):
    words = ("--connect", service, "--max-tokens", "4", "--logit-bias", "0=100", "What is a list?")
    result = specserve("generate", *words)
    assert (result.returncode, result.stdout) == (0, "\n")
    assert "the model ended at once" in result.stderr
    assert "specserve chat asks a question" in result.stderr


@pytest.mark.slow
def test_generate_json_lists_every_sample_and_its_logprobs(service, specserve):
    words = ("--n", "3", "--logprobs", "2", "--prompt-logprobs", "1", "--max-tokens", "4")
    result = specserve("generate", "--json", "--connect", service, *words, "import os")
    document = json.loads(result.stdout)
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2]
    assert document["choices"][0]["text"] == document["text"]
    assert [len(position["top"]) for position in document["logprobs"]] == [2, 2, 2, 2]
    # A token may end inside a character.
    assert document["text"].startswith(document["logprobs"][0]["token"].rstrip("\ufffd"))
    assert all(top["token"] for position in document["logprobs"] for top in position["top"])
    assert len(document["prompt_logprobs"]) == document["usage"]["num_prompt_tokens"] - 1


@pytest.mark.slow
def test_every_sampling_flag_reaches_the_service(service, specserve):
    values = {
        "temperature": 0.9,
        "top-p": 0.9,
        "top-k": 20,
        "min-p": 0.01,
        "presence-penalty": 0.1,
        "frequency-penalty": 0.1,
        "repetition-penalty": 1.1,
        "min-tokens": 2,
        "max-tokens": 6,
        "seed": 3,
        "priority": 1,
        "min-tokens-per-s": 40,
        "stop": "zzz",
        "stop-token-id": 9,
        "logit-bias": "17=-5",
    }
    flags = ["--ignore-eos", *(f"--{flag}={value}" for flag, value in values.items())]
    result = specserve("generate", "--connect", service, *flags, "def")
    assert result.returncode == 0, result.stderr
    biased = specserve(
        "generate",
        "--json",
        "--connect",
        service,
        "--logit-bias",
        "65=1e2",
        "--max-tokens",
        "3",
        "a",
    )
    assert json.loads(biased.stdout)["token_ids"] == [65, 65, 65]


@pytest.mark.slow
def test_a_prompt_can_come_from_stdin(service, specserve):
    words = ("generate", "--json", "--connect", service, "--max-tokens", "4", "--seed", "1")
    from_stdin = json.loads(specserve(*words, "-", stdin="import ").stdout)
    from_argument = json.loads(specserve(*words, "import ").stdout)
    assert from_stdin["token_ids"] == from_argument["token_ids"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [("-", "--seed", "1"), ("--seed", "1", "-")])
def test_a_prompt_can_come_through_a_pipe(service, words):
    """Of the command as it is installed, wherever the dash stands."""
    flags = ["--connect", service, "--max-tokens", "4", "--temperature", "0"]
    command = [sys.executable, "-m", "specserve", "generate", *flags, *words]
    kept = {"capture_output": True, "text": True, "timeout": 60}
    piped = subprocess.run(command, input="def main():", check=True, **kept)
    given = subprocess.run([*command[:-3], "--seed", "1", "def main():"], check=True, **kept)
    assert piped.stdout == given.stdout


@pytest.mark.slow
@pytest.mark.parametrize("bias", ["-5=1", "-5=-1e2"])
def test_a_negative_token_id_is_no_option(service, refused, bias):
    line = refused("generate", "--connect", service, "--logit-bias", bias, "x")
    assert line == "logit_bias: token id -5 is out of range; it must be 0 to vocab_size - 1"


@pytest.mark.slow
def test_stdin_that_is_not_utf_8_is_refused_by_name(service, refused):
    to_service, latin_1 = ("--connect", service), "caf\u00e9\n".encode("latin-1")
    line = refused("generate", *to_service, "-", stdin=latin_1)
    assert line == "prompt: stdin is not UTF-8 at byte 3"
    assert refused("chat", *to_service, stdin=latin_1) == "chat: stdin is not UTF-8"


def test_help_shows_how_to_ask_for_a_pace(specserve):
    words = " ".join(specserve("generate", "--help").stdout.split())
    assert "--min-tokens-per-s X aim at so many a second" in words
    assert "--priority -1 --min-tokens-per-s 40" in words


def test_help_says_where_log_probabilities_are_shown(specserve):
    words = specserve("generate", "--help").stdout.split()
    assert " ".join(words).count("shown by generate --json") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "value", "field"),
    [
        ("--temperature", "nan", "temperature"),
        ("--n", "1000000", "n"),
        ("--logprobs", "5000", "logprobs"),
        ("--max-tokens", "0", "max_tokens"),
        ("--top-p", "2", "top_p"),
        ("--min-tokens-per-s", "0", "min_tokens_per_s"),
    ],
)
def test_a_sampling_value_out_of_range_is_one_line_from_the_service(
    service, flag, value, field, refused
):
    line = refused("generate", "--connect", service, flag, value, "x")
    assert line.startswith(f"{field}: ")


@pytest.mark.slow
def test_an_empty_and_an_overlong_prompt_are_refused(service, refused):
    assert refused("generate", "--connect", service, "").startswith("prompt: ")
    assert "2047" in refused("generate", "--connect", service, "word " * 5000)


@pytest.mark.slow
def test_an_answer_that_cannot_be_written_is_one_line():
    words = ["generate", "--target", "tiny", "--max-tokens", "3", "--oversubscribe", "x"]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "specserve", *words],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr == "specserve: stdout: No space left on device\n"


@pytest.mark.slow
def test_generate_starts_and_stops_a_service_of_its_own():
    words = ["generate", "--json", "--max-tokens", "3", "--oversubscribe", "x"]
    result = subprocess.run(
        [sys.executable, "-m", "specserve", *words], capture_output=True, text=True, check=True
    )
    assert result.stderr == ""
    assert len(json.loads(result.stdout)["token_ids"]) == 3


@pytest.mark.slow
def test_a_model_that_computes_no_numbers_is_one_line_in_the_log_and_one_for_the_user(
    embedded_target, tmp_path
):
    shutil.copytree(embedded_target, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"].fill_(torch.nan)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    words = ["generate", "--target", str(tmp_path), "--oversubscribe", "x"]
    result = subprocess.run(
        [sys.executable, "-m", "specserve", *words], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (1, "")
    logged, told = result.stderr.splitlines()
    problem = "the model computes NaN or infinity instead of logits; are its weights damaged?"
    assert " E target 0: " in logged
    assert logged.endswith(problem)
    assert told == f"specserve: {problem}"
