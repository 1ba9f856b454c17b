"""What docs/quick-start.md and docs/security.md show is run, on a real service and real files."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from specserve import cli
from specserve.processes.local_service import local_apis
from specserve.processes.process import ReadyReport
from specserve.settings.config import ServerConfig
from specserve.settings.door import require_safe_door
from specserve.settings.key_file import read_keys
from tests.docs.raised import ROOT
from tests.docs.shown import blocks, command_lines, parts

PAGE = ROOT / "docs" / "quick-start.md"
SECURITY = ROOT / "docs" / "security.md"
_GRPC, _HTTP = "127.0.0.1:7411", "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def service() -> Iterator[ReadyReport]:
    """As `specserve launch` starts it, of the model that every machine has."""
    with local_apis(["--target", "tiny"]) as apis:
        yield apis


def here(text: str, service: ReadyReport) -> str:
    """With the places of the service instead of those that are usual."""
    return text.replace(_GRPC, service.address).replace(_HTTP, str(service.http_url))


def shown(language: str = "") -> list[str]:
    return [block.text for block in blocks(PAGE) if block.language == language]


def client_lines() -> list[str]:
    """What is typed in the other terminal."""
    lines = [line for text in shown() for line in command_lines(text)]
    return [line for line in lines if _GRPC in line or _HTTP in line]


def test_the_page_shows_each_way_to_ask():
    typed = " ".join(client_lines())
    assert all(word in typed for word in ("curl", "generate", "chat", "top", "info"))
    assert len(shown("python")) == 2
    told = "".join(shown("text"))
    assert _GRPC in told
    assert _HTTP in told


@pytest.mark.slow
@pytest.mark.parametrize("line", client_lines(), ids=lambda line: " ".join(line.split()[:2]))
def test_what_is_typed_is_answered(line, service, capfd, monkeypatch, tmp_path):
    *before, words = parts(here(line, service))
    said = tmp_path / "said"
    said.write_text("".join(f"{' '.join(each[1:])}\n" for each in before))
    if words[0] == "curl":
        ended = subprocess.run([*words, "--silent"], capture_output=True, text=True, check=True)
        assert json.loads(ended.stdout)["choices"][0]["message"]["content"]
        return
    with said.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert cli.main(words[1:]) == 0
    out = capfd.readouterr().out
    assert out.strip()
    if "--json" in words:
        assert json.loads(out)["spec"]["num_draft_tokens"] >= 0


@pytest.mark.slow
@pytest.mark.parametrize("snippet", shown("python"), ids=["openai", "ours"])
def test_a_snippet_prints_an_answer(snippet, service, capsys):
    exec(compile(here(snippet, service), str(PAGE), "exec"), {})
    assert capsys.readouterr().out.strip()


def test_keys_and_certificates_that_security_shows_are_taken(tmp_path: Path):
    lines = [
        line
        for block in blocks(SECURITY)
        for line in command_lines(block.text)
        if block.language == ""
    ]
    assert len(lines) == 4
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
