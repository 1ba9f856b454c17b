"""README and CHANGELOG claim the same of GPUs and of APIs, and what results and code bear out."""

import re

import pytest

from tests.architecture.sources import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
GPU_NOTES = (ROOT / "bench/results/gpu/NOTES.md").read_text(encoding="utf-8")
API = ROOT / "specserve" / "api"

TOPICS = ("OpenAI-compatible HTTP", "authentication", "several hosts", "several GPUs", "flashinfer")
RUNS = ("serving", "speculation", "training", "NCCL between")  # what has been tried on a GPU
GPU = re.compile(r"\b(?:[ABHL]\d{2,3}S?|RTX ?\d{4}|GB200)\b")  # as NVIDIA calls them
NEVER = re.compile(r"nothing (here )?(has )?(ran|run)|(not|never) (been )?(ran|run) on", re.I)


def missing_in_readme(text: str) -> set[str]:
    """Topics that a row of its status table says are not there yet."""
    missing: set[str] = set()
    for subject, status in re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE):
        for clause in re.split("[;,]", status):
            if clause.strip() == "not yet":
                missing |= topics_in(subject)
            elif "not yet" in clause or "to come" in clause:
                missing |= topics_in(clause)
    return missing


def missing_in_changelog(text: str) -> set[str]:
    """Topics of its section of what is not there yet."""
    return topics_in(section("### Not yet", text))


def section(title: str, text: str) -> str:
    found = re.search(rf"^{title}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def topics_in(text: str) -> set[str]:
    return {topic for topic in TOPICS if topic.lower() in text.lower()}


def runs_in_readme(text: str) -> set[str]:
    """What a row of its status table about GPUs says has run on one."""
    rows = section("## Status", text).splitlines()
    return runs_in(" ".join(row for row in rows if "GPU" in row))


def runs_in_changelog(text: str) -> set[str]:
    """The same of what is said of GPUs in its section of what is not there yet."""
    points = re.split(r"^- ", section("### Not yet", text), flags=re.MULTILINE)
    return runs_in(" ".join(point for point in points if "GPU" in point))


def runs_in(text: str) -> set[str]:
    return {run for run in RUNS if run.lower() in " ".join(text.split()).lower()}


def test_both_say_the_same_of_what_is_missing():
    assert missing_in_readme(README) == missing_in_changelog(CHANGELOG)


@pytest.mark.parametrize("text", [README, CHANGELOG], ids=["README", "CHANGELOG"])
def test_gpus_are_claimed_as_the_results_have_them(text):
    ran_on = set(GPU.findall(" ".join(re.findall("^## .*$", GPU_NOTES, re.MULTILINE))))
    assert ran_on, "the notes' headings name the device of each run"
    assert set(GPU.findall(text)) == ran_on


def test_both_say_the_same_of_what_has_run_on_a_gpu():
    assert runs_in_readme(README) == runs_in_changelog(CHANGELOG) == set(RUNS)
    assert [text for text in (README, CHANGELOG) if "bench/results/gpu/NOTES.md" not in text] == []


def test_nobody_says_that_nothing_has_run_on_a_gpu():
    documents = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    for path in documents:
        lines = path.read_text(encoding="utf-8").splitlines()
        assert not [line for line in lines if NEVER.search(line) and "GPU" in line], path


def test_several_gpus_are_missing_until_the_notes_have_them():
    rows = re.findall(r"^\| (?:anything with )?two devices.*$", GPU_NOTES, re.MULTILINE)
    assert rows, "every run says whether it had two"
    have_run = any("**not run**" not in row for row in rows)
    assert ("several GPUs" in missing_in_changelog(CHANGELOG)) != have_run


def test_an_api_is_missing_until_there_is_code_for_it():
    has_http = (API / "http" / "app.py").is_file()
    assert ("OpenAI-compatible HTTP" in missing_in_changelog(CHANGELOG)) != has_http
    has_grpc = (API / "grpc.py").is_file()
    assert ("gRPC API" in CHANGELOG, "gRPC" in README) == (has_grpc, has_grpc)


def test_what_has_run_is_found():
    rows = "| One GPU: serving | H100 |\n| NCCL between ranks | one GPU |\n| Training | works |\n"
    assert runs_in_readme(f"| a GPU: training |\n## Status\n{rows}") == {"serving", "NCCL between"}
    points = "### Not yet\n- Training.\n- GPUs: one has run serving, NCCL\n  between two.\n## [1]"
    assert runs_in_changelog(points) == {"serving", "NCCL between"}


def test_what_is_missing_is_found():
    row = "| OpenAI-compatible HTTP, authentication | not yet |\n"
    assert missing_in_readme(row) == {"OpenAI-compatible HTTP", "authentication"}
    assert missing_in_readme("| NCCL | has run; not yet on several GPUs |\n") == {"several GPUs"}
    assert missing_in_readme("| Several GPUs | works, flashinfer is to come |\n") == {"flashinfer"}
    assert missing_in_changelog("### Not yet\n- Several GPUs.\n## [1]\nauthentication\n") == {
        "several GPUs"
    }
    assert NEVER.search("Nothing has run on a GPU; `tests/gpu` waits for one.")
    assert GPU.findall("one NVIDIA H100 80GB HBM3, an L40S, no AMD EPYC") == ["H100", "L40S"]
