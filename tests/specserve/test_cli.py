"""The command line as a user meets it: help, usage and one-line errors of every command."""

import socket
import subprocess
import sys
import threading

import pytest

from specserve import __version__

COMMANDS = ("launch", "generate", "chat", "train", "calibrate", "audit", "info")


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
        (("serve",), "there is no command serve; specserve launch is what you mean (see"),
        (("launch", "--dtype", "fp16"), "model.dtype: 'fp16' is not known (float32, bfloat16, fl"),
        (
            ("launch", "--dtype", "Half"),
            "model.dtype: 'Half' is not known (float32, bfloat16, float16); write float16",
        ),
        (("launch", "--set", "engine.x=1"), "engine.x: is no known key"),
        (("launch", "--set", "nonsense"), "--set: 'nonsense' is not of the form"),
        (("launch", "--config", "/nowhere.toml"), "--config: cannot read /nowhere.toml"),
        (("launch", "--ballast", "1"), "ballast: 1 parameters leave no room"),
        (("launch", "--ballast", "-60M"), "model.ballast: '-60M' is negative; it must be a count"),
        (("launch", "--kv-memory", "-5MiB"), "engine.kv_memory: '-5MiB' is negative; it must be"),
        (("launch", "--threads", "-1"), "topology.threads: expected int of at least 1, got -1"),
        (("launch", "--max-model-len", "1000000"), "model.max_model_len: 1000000 exceeds"),
        (("launch", "--target", "/proc"), "model.target: /proc is no model folder"),
        (("launch", "--target", "no such thing"), "model.target: 'no such thing' is none of"),
        (("launch", "--frobnicate"), "unrecognized arguments: --frobnicate (see specserve launch"),
        (
            ("launch", "--max-batch-rowz", "3"),
            "unrecognized arguments: --max-batch-rowz 3 (nearest: --max-batch-rows) (see specserve",
        ),
        (
            ("generate", "x", "--max-row", "3"),
            "unrecognized arguments: --max-row 3 (nearest: --max-batch-rows) (see specserve",
        ),
        # Near to --hang-timeout-s and --draft-timeout-s, which are other things.
        (
            ("generate", "x", "--timeout-s", "3"),
            "unrecognized arguments: --timeout-s 3 (see specserve generate --help)",
        ),
        # One that commands have for one another is no suggestion to a person.
        (("launch", "--ready-df", "3"), "unrecognized arguments: --ready-df 3 (see specserve lau"),
        (
            ("launch", "Qwen/Qwen3-0.6B"),
            "unrecognized arguments: Qwen/Qwen3-0.6B; a model is named by --target",
        ),
        (
            ("info", "Qwen3-8B"),
            "unrecognized arguments: Qwen3-8B; a model is named by --target, a running service by",
        ),
        (
            ("chat", "What is the capital of France?"),
            "unrecognized arguments: What is the capital of France?; questions are typed in the",
        ),
        (
            ("generate", "Once", "upon", "a", "time"),
            "unrecognized arguments: upon a time; a prompt of several words is one in quotation",
        ),
        (
            ("top", "127.0.0.1:7411"),
            "unrecognized arguments: 127.0.0.1:7411; a running service is named by --connect",
        ),
        (("generate", "--target", "/proc", "x"), "model.target: /proc is no model folder"),
        (("train",), "kind: is missing; type specserve train data|dspark|dflash|eagle3|"),
        (("generate", "--n", "many", "x"), "argument --n: invalid int value: 'many'"),
        (("generate", "--logit-bias", "a=b", "x"), "--logit-bias: 'a=b' is not of the form"),
        (
            ("generate", "--connect", "x:1", "--topology", "2+0", "--no-deterministic", "x"),
            "--connect: a running service keeps its own settings; "
            "drop --topology 2+0 --no-deterministic",
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
        f"specserve: --connect: no service answers at {address}; start one with: "
        "specserve launch, or correct the address: that of gRPC, which launch prints last, "
        "and with --tls-ca where it has TLS\n"
    )


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
