"""Commands that documents show are understood, flags that they name exist."""

import ast
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from specserve.settings.config import load_config
from tests.docs import command_places
from tests.docs.command_lines import OF_OTHERS, known_flags, problem
from tests.docs.raised import ROOT
from tests.docs.shown import OF_USERS, PAGES, Block, Command, blocks, commands

SHOWING = [page for page in PAGES if any(blocks(page)) or list(commands(page))]
IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
GUIDES = [
    ROOT / "docs" / f"{name}.md"
    for name in (
        "quick-start", "concepts", "running", "training", "tuning", "operations", "metrics",
        "security", "errors",
    )
]  # fmt: skip
# Of programs that are none of ours.
FOREIGN = {
    "--cacert", "--api-key", "--nproc-per-node", "--per-device-train-batch-size",
    "--num-train-epochs", "--max-steps", "--learning-rate", "--output-dir",
    "--resume-from-checkpoint", "--ttt-length", "--enable-auto-tool-choice",
}  # fmt: skip


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def in_sentences(page: Path) -> list[Command]:
    """`specserve ...` in backticks; three dots stand for what was typed before."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    lines = [words for words in IN_BACKTICKS.findall(text) if words.startswith("specserve ")]
    found = [shlex.split(line.replace("\\|", "|"), comments=True) for line in lines]
    return [
        Command(named(page), tuple(word for word in words if word != "..."))
        for words in found
        if not words[1].isupper() and not words[1].startswith("launch|")
    ]


@pytest.mark.parametrize("page", SHOWING, ids=named)
def test_every_command_in_a_block_is_understood(page):
    wrong = {str(command): problem(command) for command in commands(page)}
    assert {command: why for command, why in wrong.items() if why} == {}


def test_every_command_of_users_is_run_or_it_is_said_why_not():
    found = {str(command) for page in OF_USERS for command in commands(page)}
    placed = command_places.RUN | command_places.PARSED.keys()
    assert found - placed == set()  # give it a place in tests/docs/command_places.py
    assert placed - found == set()  # no longer shown
    assert command_places.RUN & command_places.PARSED.keys() == set()
    assert all(command_places.PARSED.values())


def test_tests_that_reasons_name_are_there():
    reasons = " ".join(command_places.PARSED.values())
    assert [
        name for name in re.findall(r"tests/[\w/.]+\w", reasons) if not (ROOT / name).exists()
    ] == []


@pytest.mark.parametrize("page", [ROOT / "README.md", *GUIDES], ids=named)
def test_every_command_in_a_sentence_is_understood(page):
    wrong = {str(command): problem(command) for command in in_sentences(page)}
    assert {command: why for command, why in wrong.items() if why} == {}


@pytest.mark.parametrize("page", GUIDES, ids=named)
def test_every_flag_that_is_named_exists(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    flags = {
        flag
        for words in IN_BACKTICKS.findall(text)
        if words.startswith("--")
        for flag in re.findall(r"(?<!\S)--[a-z][\w-]*", words)
    }
    assert flags - known_flags() - FOREIGN == set()


def test_commands_are_shown_at_all():
    found = [command for page in PAGES for command in commands(page)]
    assert len(found) > 80
    programs = {command.words[0].rpartition("/")[2] for command in found}
    assert programs >= {"specserve", "python", "make", "curl", "pip"}
    assert set(OF_OTHERS) <= programs  # else it is no longer shown


@pytest.mark.parametrize(
    "block",
    [block for page in PAGES for block in blocks(page) if block.language == "toml"],
    ids=lambda block: named(block.page),
)
def test_a_file_of_settings_is_one(block: Block, tmp_path: Path):
    path = tmp_path / "serve.toml"
    path.write_text(block.text)
    assert load_config(path, {})


@pytest.mark.parametrize(
    "block",
    [block for page in PAGES for block in blocks(page) if block.language == "python"],
    ids=lambda block: named(block.page),
)
def test_a_snippet_imports_what_there_is(block: Block):
    imported = [
        node for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.ImportFrom)
    ]
    assert imported
    for node in imported:
        module = import_module(str(node.module))
        assert [each.name for each in node.names if not hasattr(module, each.name)] == []


def test_no_block_is_of_a_language_that_nobody_checks():
    languages = {block.language for page in PAGES for block in blocks(page)}
    assert languages <= {"", "toml", "python", "text"}


def test_what_is_wrong_is_found():
    def why(line: str) -> str | None:
        return problem(Command("a page", tuple(shlex.split(line))))

    assert why("specserve launch --topology 1+1 --speculation async") is None
    assert "strays" in str(why("specserve launch --gone"))
    assert "speculation.gamma" in str(why("specserve launch --gamma none"))
    assert "no kind of training" in str(why("specserve train gone"))
    assert "strays" in str(why("specserve train dspark --out x --gone"))
    assert why("specserve train dspark --out x") is None
    assert "unrecognized" in str(why("python -m bench.sweep --gone")) or "strays" in str(
        why("python -m bench.sweep --gone")
    )
    assert "no targets" in str(why("make gone"))
    assert "no extra" in str(why("pip install 'specserve[gone]'"))
    assert why("pip install 'specserve[otel]'") is None
    body = """'{"prompt": "a", "temprature": 0}'"""
    assert "temperature" in str(why(f"curl http://127.0.0.1:8000/v1/completions -d {body}"))
    assert "[]" in str(why("curl http://127.0.0.1:8000/v1/gone"))
    assert "nobody knows" in str(why("gone --fast"))
