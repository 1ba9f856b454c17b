"""`specserve audit` on real services of a tiny model: sound ones pass, broken ones fail."""

import json
import shutil
from pathlib import Path

import pytest

from specserve.cli import main
from tests.specserve.model.checkpoints import QWEN3, write_checkpoint

# The target drafts for itself, from fewer tokens than its laws have: a third or more is refused.
FEW = ("--requests", "24", "--samples", "800", "--quick", "--json")
# Every draft is judged, whatever it costs on this machine, and prompts leave room for all of them.
_SETTINGS = {
    "topology.pin": "false",
    "speculation.num_kept": "2",
    "speculation.min_survival": "0",
    "engine.max_batch_tokens": "2048",
}
SETTINGS = [word for key, value in _SETTINGS.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, embedded_target) -> Path:
    """A small random model with the embedded tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder, QWEN3, vocab_size=4096, eos_token_id=0, max_position_embeddings=1024)
    for path in embedded_target.glob("*token*.json"):
        shutil.copy(path, folder)
    return folder


@pytest.fixture
def audit(tiny, capsys):
    """The exit code and the report of one audit, of services of its own."""

    def audit(*words: str) -> tuple[int, dict]:
        own = () if "--connect" in words else ("--target", str(tiny), *SETTINGS)
        code = main(["audit", *FEW, *own, *words])
        return code, json.loads(capsys.readouterr().out)

    return audit


def plant(monkeypatch, folder: Path, code: str) -> None:
    """Have every target process that starts from now on run `code` first."""
    text = "import sys\nif 'target_node' in sys.orig_argv:\n"
    lines = (f"    {line}\n" for line in code.splitlines())
    (folder / "sitecustomize.py").write_text(text + "".join(lines))
    monkeypatch.setenv("PYTHONPATH", str(folder))


def statuses(report: dict, kind: str) -> set[str]:
    return {check["status"] for check in report["checks"] if check["check"] == kind}


@pytest.mark.slow
def test_a_sound_service_passes_under_both_rules(audit, tiny):
    code, report = audit("--drafter", str(tiny))
    assert (code, report["verdict"]) == (0, "passed")
    assert {check["rule"] for check in report["checks"]} == {"rejection", "foreseeable"}
    laws = [check for check in report["checks"] if check["check"] == "law"]
    assert len(laws) == 8
    assert all(check["screening"]["num_samples"] == 800 for check in laws)
    # So few samples see large errors only, and the report says so.
    assert all(check["power"] < 0.1 and 0.05 < check["reach"] < 0.3 for check in laws)
    assert sum(check["origins"]["num_accepted"] for check in laws) > 1000  # 4,500 is usual


@pytest.mark.slow
def test_drafts_from_another_process_are_audited_against_a_target_without_one(audit, tiny):
    words = ["--topology", "1+1", "--oversubscribe", "--verification", "foreseeable"]
    # Blocks are waited for: on a busy machine a draft process might never be in time. Of few rows
    # enough have one, since nobody waits for the others' then.
    waits = ("speculation.miss_policy=draft_now", "speculation.draft_wait_ms=5000")
    for setting in (*waits, "engine.max_batch_rows=4"):
        words += ["--set", setting]
    code, report = audit("--drafter", str(tiny), *words)
    assert (code, report["verdict"]) == (0, "passed")
    assert report["service"]["speculation"] == "async"


@pytest.mark.slow
def test_a_running_service_is_audited_as_it_is(audit, tiny, start_service):
    flags = ("--target", str(tiny), "--speculation", "sync", "--drafter", str(tiny))
    address = start_service(*flags, "--verification", "coupled")
    code, report = audit("--connect", address)
    assert (code, report["verdict"]) == (0, "passed")
    assert report["service"]["verification"] == "coupled"
    assert statuses(report, "equality") == {"passed"}


BONUS_FROM_THE_ROW_BEFORE = """
from specserve.decoding.verification import verify
real = verify.walk_ends
def walk_ends(num_accepted, group):
    full = (num_accepted == group.verify_lens) & (group.verify_lens > 0)
    return real(num_accepted, group) - (full.long() if group.ratio else 0)
verify.walk_ends = walk_ends
verify.by_compiled_ratio = lambda *_: None
"""
ACCEPT_ALL = """
from specserve.decoding.verification import equality
equality.walk = lambda drafted, drawn: equality.Walk(len(drafted), drawn[-1], False)
"""


@pytest.mark.slow
def test_a_service_with_wrong_bonus_tokens_fails_by_its_law(audit, tiny, tmp_path, monkeypatch):
    plant(monkeypatch, tmp_path, BONUS_FROM_THE_ROW_BEFORE)
    code, report = audit("--drafter", str(tiny), "--verification", "rejection")
    assert (code, report["verdict"]) == (1, "failed")
    assert statuses(report, "equality") == {"passed"}
    assert "failed" in statuses(report, "law")


@pytest.mark.slow
def test_a_service_that_accepts_too_much_fails_by_its_text(audit, tmp_path, monkeypatch):
    plant(monkeypatch, tmp_path, ACCEPT_ALL)
    code, report = audit("--drafter", "ngram", "--verification", "coupled")
    assert (code, report["verdict"]) == (1, "failed")
    (check,) = (check for check in report["checks"] if check["check"] == "equality")
    assert check["num_different"] > 0
    assert check["first_difference"].startswith("request ")


@pytest.mark.slow
def test_where_no_draft_is_verified_nothing_is_shown(audit, tiny):
    words = ("--drafter", str(tiny), "--verification", "rejection")
    code, report = audit(*words, "--set", "speculation.min_survival=1")
    assert (code, report["verdict"]) == (1, "not exercised")


def refused(capsys, *words: str) -> str:
    assert main(["audit", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("specserve: ")


def test_what_cannot_be_audited_is_refused_before_anything_starts(capsys, tmp_path):
    assert refused(capsys, "--drafter", "nobody").startswith("speculation.drafter: 'nobody' is no")
    assert refused(capsys, "--speculation", "off").startswith("--speculation: is off")
    (tmp_path / "off.toml").write_text('[speculation]\nmode = "off"\n')
    off = refused(capsys, "--config", str(tmp_path / "off.toml"))
    assert off.startswith("--speculation: is off")
    assert refused(capsys, "--drafter", "ngram", "--verification", "trust").startswith(
        "speculation.verification: "
    )
    words = ("--connect", "127.0.0.1:1", "--drafter", "ngram")
    assert refused(capsys, *words).startswith("--connect: a running service keeps")


@pytest.mark.slow
def test_a_service_that_does_not_speculate_is_refused(capsys, start_service):
    words = ("--connect", start_service("--speculation", "off"), "--requests", "1", "--quick")
    assert main(["audit", *words]) == 2
    assert "does not speculate" in capsys.readouterr().err
