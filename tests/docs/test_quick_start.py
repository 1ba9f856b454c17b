"""What documents show to ask a service, and docs/security.md of keys, is run as it stands there."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specserve import cli
from specserve.client import Client
from specserve.processes.local_service import local_apis
from specserve.processes.process import ReadyReport
from specserve.settings.config import ServerConfig
from specserve.settings.door import require_safe_door
from specserve.settings.key_file import read_keys
from specserve.types import Grammar, GrammarKind
from tests.docs.command_places import ASKED, ASKS, SECURITY
from tests.docs.raised import ROOT
from tests.docs.shown import OF_USERS, blocks, command_lines, commands, parts

PAGE = ROOT / "docs" / "quick-start.md"
KEYS = ROOT / "docs" / "security.md"
# What any page shows to be run from Python.
SNIPPETS = [block for page in OF_USERS for block in blocks(page) if block.language == "python"]
_GRPC, _HTTP = "127.0.0.1:7411", "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def service() -> Iterator[ReadyReport]:
    """As `specserve launch` starts it, of the model that every machine has."""
    with local_apis(shlex.split(ASKED)[2:]) as apis:
        with Client(apis.address) as client:  # starts its compiler of grammars, before any test
            client.generate("a", grammar=Grammar(GrammarKind.CHOICE, '["b"]'))
        yield apis


def here(text: str, service: ReadyReport) -> str:
    """With the places of the service instead of those that are usual."""
    return text.replace(_GRPC, service.address).replace(_HTTP, str(service.http_url))


def shown(language: str = "") -> list[str]:
    return [block.text for block in blocks(PAGE) if block.language == language]


def client_lines() -> list[str]:
    """What any page has typed in the other terminal, once."""
    texts = [block.text for page in OF_USERS for block in blocks(page) if block.language == ""]
    lines = dict.fromkeys(line for text in texts for line in command_lines(text))
    return [line for line in lines if shlex.join([*parts(line)][-1]) in ASKS]


def test_the_page_shows_each_way_to_ask():
    typed = {shlex.join([*parts(line)][-1]) for line in client_lines()}
    assert typed == ASKS
    on_the_page = " ".join(map(str, commands(PAGE)))
    assert all(word in on_the_page for word in ("curl", "generate", "chat", "top", "info"))
    assert len(shown("python")) == 2
    told = "".join(shown("text"))
    assert _GRPC in told
    assert _HTTP in told


@pytest.mark.slow
@pytest.mark.parametrize("line", client_lines(), ids=lambda line: " ".join(line.split()[:2]))
def test_what_is_typed_is_answered(line, service, capfd, monkeypatch, tmp_path):
    *before, words = parts(here(line, service))
    if "--connect" not in words and words[0] == "specserve":
        words = (*words, "--connect", service.address)  # instead of the usual port
    said = tmp_path / "said"
    said.write_text("".join(f"{' '.join(each[1:])}\n" for each in before) or "Hello?\n")
    if words[0] == "curl":
        ended = subprocess.run([*words, "--silent"], capture_output=True, text=True, check=True)
        answer = json.loads(ended.stdout)
        assert answer["data"] if "-d" not in words else answer["choices"][0]["message"]["content"]
        return
    if words[1] == "top" and "--once" not in words:
        assert stopped_after_a_line(words) == 0
        return
    with said.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert cli.main(words[1:]) == 0
    out = capfd.readouterr().out
    assert out.strip()
    if "--json" in words:
        told = json.loads(out)
        assert told["usage"]
        if "--temperature" in words:  # of sampled text it may be that nothing is drafted
            assert told["spec"]["num_draft_tokens"] >= 0


def stopped_after_a_line(words: tuple[str, ...]) -> int:
    """The exit code of what goes on until Ctrl-C."""
    command = [sys.executable, "-m", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout
        assert watching.stdout.readline().strip()
        watching.send_signal(signal.SIGINT)
        return watching.wait(60)


@pytest.mark.slow
@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: block.page.name)
def test_a_snippet_prints_an_answer(block, service, capsys):
    exec(compile(here(block.text, service), str(block.page), "exec"), {})
    assert capsys.readouterr().out.strip()


def test_keys_and_certificates_that_security_shows_are_taken(tmp_path: Path):
    lines = [
        line for block in blocks(KEYS) for line in command_lines(block.text) if block.language == ""
    ]
    assert {shlex.join(words) for line in lines for words in parts(line)} == SECURITY
    script = "\n".join(lines).replace("MACHINE", "localhost").replace("ADDRESS", "127.0.0.1")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, env=environment, check=True, capture_output=True
    )
    keys = read_keys(tmp_path / "keys", "server.api_key_file")
    assert [key.name for key in keys] == ["alice", "admin"]
    server = ServerConfig(
        host="0.0.0.0",
        api_key_file=str(tmp_path / "keys"),
        tls_cert=str(tmp_path / "cert.pem"),
        tls_key=str(tmp_path / "key.pem"),
    )
    assert require_safe_door(server).tls_cert == str(tmp_path / "cert.pem")
