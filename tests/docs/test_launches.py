"""What documents have started is started; what needs a reader's model is resolved with ours."""

import re
import shlex
from pathlib import Path

import pytest

from specserve import cli
from specserve.cli import build_parser
from specserve.commands.service_options import read_config
from specserve.processes.launch import resolve_here
from specserve.settings.target_source import EMBEDDED_TARGET, find_smollm2
from tests.docs.command_places import ALONE, RESOLVES, STARTS
from tests.docs.raised import ROOT
from tests.docs.shown import blocks
from tests.service.chaos import end
from tests.service.launched import Launched

QUICK_START = ROOT / "docs" / "quick-start.md"


@pytest.fixture(autouse=True)
def _models_of_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file and a folder with the names that documents use, where commands are typed."""
    smollm2 = find_smollm2()
    assert smollm2 is not None
    (tmp_path / "Qwen3-0.6B-Q8_0.gguf").symlink_to(smollm2)
    (tmp_path / "Qwen3-0.6B").symlink_to(EMBEDDED_TARGET)
    monkeypatch.chdir(tmp_path)


def told() -> list[re.Pattern[str]]:
    """What docs/quick-start.md says that a launch prints, at any ports."""
    (block,) = [each for each in blocks(QUICK_START) if each.language == "text"]
    lines = block.text.splitlines()
    return [re.compile(re.sub(r"\d{4}", r"\\d+", re.escape(line))) for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(STARTS))
def test_what_is_started_says_where_it_listens_and_ends_as_it_is_told(command: str):
    flags = shlex.split(command)[2:]
    launched = Launched(*flags, "--http-port", "0", target="tiny" if flags else "")
    try:
        launched.address()
    finally:
        end(launched)
    assert launched.process.returncode == 0, launched.output
    assert [line.pattern for line in told() if not line.search(launched.output)] == []
    assert "Traceback" not in launched.output


@pytest.mark.parametrize("command", sorted(RESOLVES))
def test_what_would_be_started_is_resolved(command: str):
    words = shlex.split(command)[1:]
    if "MODEL" in words:  # that drafts for the tiny one
        words[words.index("MODEL")] = str(EMBEDDED_TARGET)
        words += ["--target", "tiny"]
    arguments, strays = build_parser().parse_known_args(words)
    assert strays == []
    resolved = resolve_here(read_config(arguments))
    asked = words[words.index("--topology") + 1] if "--topology" in words else "1+0"
    roles = [place.role for place in resolved.placements]
    assert f"{roles.count('target')}+{roles.count('draft')}" == asked


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(ALONE))
def test_what_needs_no_service_says_something(command: str, capfd: pytest.CaptureFixture[str]):
    words = shlex.split(command)[1:]
    if words[0] == "generate":
        words += ["--target", "tiny", "--oversubscribe"]
    assert cli.main(words) == 0
    assert len(capfd.readouterr().out) > 20
