"""The command line as a user meets it: real commands, real service, one-line errors."""

import io
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from specserve import __version__
from specserve.cli import main
from specserve.local_service import local_service

COMMANDS = ("launch", "generate", "chat", "train", "calibrate", "audit", "info")


class Ended(NamedTuple):
    """How one command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def specserve(capsys, monkeypatch) -> Callable[..., Ended]:
    """Run one command in this process, as the installed `specserve` would in its own."""

    def run(*words: str, stdin: str | bytes = "") -> Ended:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))
        try:
            returncode = main(words)
        except SystemExit as ended:  # argparse's way
            returncode = ended.code
        return Ended(returncode, *capsys.readouterr())

    return run


@pytest.fixture
def refused(specserve) -> Callable[..., str]:
    """The one line on stderr of a command that must exit with 2."""

    def run(*words: str, stdin: str | bytes = "") -> str:
        result = specserve(*words, stdin=stdin)
        assert (result.returncode, result.stdout) == (2, "")
        (line,) = result.stderr.splitlines()
        return line.removeprefix("specserve: ")

    return run


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_has_examples(command, specserve):
    result = specserve(*command, "--help")
    assert result.returncode == 0
    assert "examples:\n  specserve" in result.stdout


def test_help_loads_neither_torch_nor_grpc():
    program = (
        "import sys\nfrom specserve.cli import build_parser\nbuild_parser().format_help()\n"
        "print([m for m in ('torch', 'grpc', 'zmq', 'transformers') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


def test_the_version_is_printed(specserve):
    assert specserve("--version").stdout == f"specserve {__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("launch", "--port", "99999"), "server.grpc_port: expected int from 0 to 65535"),
        (("launch", "--topology", "two"), "topology.topology: 'two' is not of the form T+D"),
        (
            ("launch", "--topology", "1+1", "--speculation", "off"),
            "topology.topology: 1+1 has draft processes",
        ),
        (("launch", "--threads", "1000"), "topology.topology: 1+0 with 1000 thread(s)"),
        (("launch", "--set", "engine.x=1"), "engine.x: is no known key"),
        (("launch", "--set", "nonsense"), "--set: 'nonsense' is not of the form"),
        (("launch", "--config", "/nowhere.toml"), "--config: cannot read /nowhere.toml"),
        (("launch", "--ballast", "1"), "ballast: 1 parameters leave no room"),
        (("launch", "--ballast", "-60M"), "model.ballast: '-60M' is negative; it must be a count"),
        (("launch", "--kv-memory", "-5MiB"), "engine.kv_memory: '-5MiB' is negative; it must be"),
        (("launch", "--threads", "-1"), "topology.threads: expected int of at least 1, got -1"),
        (("launch", "--max-model-len", "1000000"), "model.max_model_len: 1000000 exceeds"),
        (("launch", "--target", "/proc"), "model.target: /proc is no model folder"),
        (("launch", "--target", "no such thing"), "model.target: 'no such thing' is neither"),
        (("launch", "--frobnicate"), "unrecognized arguments: --frobnicate"),
        (("generate", "--target", "/proc", "x"), "model.target: /proc is no model folder"),
        (("generate", "--n", "many", "x"), "argument --n: invalid int value: 'many'"),
        (("generate", "--logit-bias", "a=b", "x"), "--logit-bias: 'a=b' is not of the form"),
        (
            ("generate", "--connect", "x:1", "--topology", "2+0", "--no-half-weights", "x"),
            "--connect: a running service keeps its own settings; "
            "drop --topology 2+0 --no-half-weights",
        ),
        (
            ("audit", "--connect", "x:1", "--config", "a.toml", "--set", "model.name=a b"),
            "--connect: a running service keeps its own settings; "
            "drop --config a.toml --set 'model.name=a b'",
        ),
        (("chat", "--n", "2"), "--n: is 2; a conversation goes on from one answer"),
        (
            ("chat", "--logprobs", "0"),
            "--logprobs: a conversation shows none; generate --json does",
        ),
        (("chat", "--prompt-logprobs", "2"), "--prompt-logprobs: a conversation shows none; gen"),
        (("info", "--ballast", "heavy"), "model.ballast: 'heavy' is not a count"),
        (("info", "--target", ""), "model.target: expected text that is not empty, got ''"),
        (("info", "--connect", "x:1", "--config", "y"), "--config: is of no use with --connect"),
        (("info", "--connect", "x:1", "--target", "y"), "--target: is of no use with --connect"),
        (("generate", "--connect", "", "x"), "argument --connect: is empty; it must be host:port"),
        (("info", "--connect", "foo"), "argument --connect: is 'foo'; it must be host:port"),
        (("chat", "--connect", "::1:7411"), "argument --connect: is '::1:7411'; it must be host"),
        (
            ("info", "--connect", "127.0.0.1:99999"),
            "argument --connect: has port 99999; the limit is 1 to 65535",
        ),
        (("audit", "--connect", "x:0"), "argument --connect: has port 0; the limit is 1 to 65535"),
        (("launch", "--max-model-len", "1"), "model.max_model_len: expected int of at least 2"),
        (("launch", "--draft-threads", "2"), "speculation.draft_threads: is for draft processes"),
        (
            ("launch", "--drafter", "dspark", "--colocated-drafter", "lm"),
            "speculation.colocated_drafter: 'lm' beside drafter 'dspark'",
        ),
        (
            ("calibrate", "--drafter", "dspark", "--plot", "x.txt"),
            "--plot: x.txt does not end in .png",
        ),
        ((), "the following arguments are required: COMMAND"),
    ],
)
def test_bad_usage_is_one_line_naming_the_field_and_exit_code_2(words, message, refused):
    assert refused(*words).startswith(message)


@pytest.mark.parametrize("command", [("generate", "-"), ("chat",), ("info",), ("audit",)])
@pytest.mark.parametrize(
    "address",
    [
        "foo.invalid:7411",
        *(pytest.param(a, marks=pytest.mark.slow) for a in ("127.0.0.1:1", "[::1]:1")),
    ],
)
def test_a_service_that_is_not_there_is_exit_code_1(specserve, command, address):
    result = specserve(*command, "--connect", address, stdin="x\n")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"specserve: --connect: no service answers at {address}; correct the address, "
        "or start one with: specserve launch\n"
    )


def test_a_prompt_from_stdin_has_an_end(specserve, monkeypatch):
    monkeypatch.setattr("specserve.commands.generate._MAX_STDIN_BYTES", 10)
    result = specserve("generate", "-", stdin="x" * 11)
    assert result.returncode == 2
    assert result.stderr == "specserve: prompt: stdin has more than 10 bytes\n"


def test_something_else_that_listens_is_no_service(specserve):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        answering = threading.Thread(target=lambda: listener.accept()[0].close())
        answering.start()
        result = specserve("info", "--connect", address)
        answering.join()
    assert result.returncode == 1
    assert result.stderr.startswith(f"specserve: --connect: no service answers at {address};")
    assert len(result.stderr.splitlines()) == 1


def test_info_shows_versions_machine_and_the_embedded_model(specserve):
    result = specserve("info", "--json", "--ballast", "60M")
    document = json.loads(result.stdout)
    assert document["versions"]["specserve"] == __version__
    assert document["machine"]["cores"] >= 1
    assert document["model"]["name"] == "specserve-embedded"
    assert "leaves the law as it is" in document["model"]["ballast"]
    assert document["model"]["stored_in"] == "bfloat16"
    assert "dtype" not in document["model"]  # which a launch decides: what is computed in
    assert "ballast" in specserve("info").stdout


def test_info_shows_what_a_file_would_serve(specserve, refused, tmp_path):
    path = tmp_path / "serve.toml"
    path.write_text('[model]\nname = "mine"\nballast = "60M"\n[engine]\nnum_blocks = 2\n')
    words = ("info", "--config", str(path))
    document = json.loads(specserve(*words, "--json", "--ballast", "12M").stdout)
    assert (document["model"]["name"], document["model"]["max_model_len"]) == ("mine", 32)
    assert document["model"]["ballast"].startswith("7.0M")  # a flag overrides the file
    settings = document["settings"]
    assert settings["model.ballast"] == "12M"
    assert (settings["engine.num_blocks"], settings["model.max_model_len"]) == ("2", "32")
    assert settings["model.dtype"] == "float32"
    assert "place.target.0" in specserve(*words).stdout
    path.write_text("[topology]\nthreads = 1000\n")
    assert refused(*words).startswith("topology.topology: 1+0 with 1000 thread(s)")


@pytest.mark.slow
def test_info_shows_a_running_service(service, specserve):
    document = json.loads(specserve("info", "--json", "--connect", service).stdout)
    assert document["service"]["topology"] == "1+0"
    assert document["model"]["model"] == "specserve-embedded"
    assert document["load"]["draining"] is False
    assert document["speculation"]["mode"] in ("auto", "sync")
    assert "acceptance_rate" in document["speculation"]


@pytest.mark.slow
def test_ballast_counts_apart_from_the_parameters_of_the_law(service, start_service, specserve):
    padded = start_service("--ballast", "12M", "--speculation", "off")
    models = [
        json.loads(specserve("info", "--json", "--connect", address).stdout)["model"]
        for address in (service, padded)
    ]
    assert models[1]["num_params"] == models[0]["num_params"]
    assert models[0]["ballast_params"] == 0
    assert models[1]["ballast_params"] > 6_000_000


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
def test_chat_takes_turns_and_survives_a_refused_one(service, specserve):
    flags = ("--connect", service, "--max-tokens", "4", "--seed", "1")
    script = f"hello\n\nhow are you?\n/reset\nhello\n{'long ' * 5000}\n/exit\nnever said\n"
    result = specserve("chat", *flags, stdin=script)
    assert result.returncode == 1  # a script does not read what was refused
    (refusal,) = result.stderr.splitlines()
    assert refusal.startswith("specserve: prompt: ")
    alone = specserve("chat", *flags, stdin="hello\n").stdout
    assert result.stdout.startswith(alone)
    assert result.stdout.endswith(alone)  # /reset forgot the turns before it


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "returncode"), [(io.StringIO, 1), (Terminal, 0)])
def test_chat_fails_where_nobody_reads_a_refusal(service, capsys, monkeypatch, kind, returncode):
    monkeypatch.setattr(sys, "stdin", kind("hello\n"))
    assert main(["chat", "--connect", service, "--temperature", "nan"]) == returncode
    assert capsys.readouterr().err.startswith("specserve: temperature: ")


@pytest.mark.slow
def test_chat_ends_with_its_service(capsys, monkeypatch):
    with ExitStack() as running:
        flags = ["--set", "topology.pin=false", "--speculation", "off"]
        address = running.enter_context(local_service(flags))

        class Typing:
            lines = iter(["hello\n", "are you there?\n", "hello?\n"])

            def isatty(self) -> bool:
                return False

            def readline(self) -> str:
                line = next(self.lines, "")
                if line.startswith("are"):
                    running.close()
                return line

        monkeypatch.setattr(sys, "stdin", Typing())
        assert main(["chat", "--connect", address, "--max-tokens", "2"]) == 1
    out, error = capsys.readouterr()
    assert len(out.splitlines()) >= 1
    assert len(error.splitlines()) == 1


@pytest.mark.slow
def test_an_answer_that_cannot_be_written_is_one_line():
    words = ["generate", "--max-tokens", "3", "--set", "topology.pin=false", "x"]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "specserve", *words],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr == "specserve: stdout: No space left on device\n"


@pytest.mark.slow
def test_generate_starts_and_stops_a_service_of_its_own():
    words = ["generate", "--json", "--max-tokens", "3", "--set", "topology.pin=false", "x"]
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
    words = ["generate", "--target", str(tmp_path), "--set", "topology.pin=false", "x"]
    result = subprocess.run(
        [sys.executable, "-m", "specserve", *words], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (1, "")
    logged, told = result.stderr.splitlines()
    problem = "the model computes NaN or infinity instead of logits; are its weights damaged?"
    assert " E target 0: " in logged
    assert logged.endswith(problem)
    assert told == f"specserve: {problem}"
