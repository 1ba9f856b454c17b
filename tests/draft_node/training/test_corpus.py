import json
import sys

from draft_node.training import cleaning, corpus, holdout, prompts
from draft_node.training.corpus import Document

ENGLISH = (
    "The parser reads one line at a time and keeps a small table of the names that it has met. "
    "When a name comes back, the earlier entry is returned; otherwise a new one is made for it.\n"
)


def _numbered(start: int, count: int) -> str:
    return " ".join(f"word{number}" for number in range(start, start + count))


def test_held_out_text_does_not_survive_in_training_text() -> None:
    secret = _numbered(0, 120)
    leaky = f"{_numbered(1000, 300)}\n{secret}\n{_numbered(2000, 300)}"
    clean = _numbered(5000, 100)
    cut, copy, kept = holdout.remove_overlap([leaky, secret, clean], [f"intro {secret} outro"])
    assert kept == clean
    assert copy == ""
    assert "word1000" in cut
    assert "word2299" in cut
    forbidden = set(holdout.shingle_hashes(secret, {}).tolist())
    assert not forbidden & set(holdout.shingle_hashes(cut, {}).tolist())


def test_short_common_phrases_are_not_cut() -> None:
    phrase = _numbered(0, holdout.SHINGLE_WORDS - 1)
    assert holdout.remove_overlap([phrase], [phrase]) == [phrase]


def test_split_by_file_is_stable_and_near_the_share() -> None:
    held_out = [name for name in map(str, range(4000)) if holdout.is_held_out(name, 0.05)]
    assert 120 < len(held_out) < 280
    assert all(holdout.is_held_out(name, 0.05) for name in held_out)


def test_a_file_and_its_docstrings_are_on_the_same_side() -> None:
    for name in map(str, range(200)):
        code = Document("code", "stdlib", name, "x")
        assert code.held_out == Document("prose", "stdlib", name, "y").held_out


def test_split_separates_held_out_files() -> None:
    documents = [
        Document("prose", "stdlib", f"file{index}", _numbered(1000 * index, 60))
        for index in range(100)
    ]
    training, held_out = corpus.split(documents)
    assert {d.source for d in training}.isdisjoint(d.source for d in held_out)
    assert len(training) + len(held_out) == len(documents)
    assert held_out


def test_repeated_paragraphs_documents_and_headers_are_kept_once() -> None:
    body = ENGLISH + "".join(f"Then sentence {n} says something else again.\n" for n in "abcdef")
    header = "# Copyright someone\n# Licensed to all\n# under some terms\n"
    code = "".join(f"def name_{c}(value):\n    return value.{c}()\n\n" for c in "abcdefghijkl")
    raw = [
        Document("prose", "package", "p/one", body),
        Document("prose", "package", "p/two", body),
        Document("code", "package", "p/a.py", header + code),
        Document("code", "package", "p/b.py", header + code.replace("value", "other")),
        Document("code", "package", "p/c.py", header + code),
    ]
    kept = {d.source: d.text for d in corpus.collect(raw)}
    assert set(kept) == {"p/one", "p/a.py", "p/b.py"}
    assert "Copyright" in kept["p/a.py"]
    assert "Copyright" not in kept["p/b.py"]


def test_generated_text_is_dropped() -> None:
    assert cleaning.looks_generated("x = [" + "0x1f, 0x2e, 0x3d,\n" * 200 + "]")
    assert cleaning.looks_generated("short")
    assert not cleaning.looks_generated(ENGLISH * 2)


def test_manual_pages_lose_their_markup() -> None:
    page = '.\\" comment\n.TH LS 1\n.SH NAME\nls \\- list \\fIdirectory\\fP contents\n.B ls\n'
    assert cleaning.strip_roff(page).split() == [
        "NAME",
        "ls",
        "-",
        "list",
        "directory",
        "contents",
        "ls",
    ]


def test_docstrings_are_collected_and_dedented() -> None:
    code = f'def f():\n    """{ENGLISH}    {ENGLISH}"""\n'
    assert corpus.docstrings(code).startswith("The parser reads")
    assert corpus.docstrings("def broken(:") == ""


def test_prompts_come_from_held_out_psf_text_only(tmp_path) -> None:
    text = "\n\n".join(ENGLISH * 3 for _ in range(3))
    documents = [
        Document("prose", origin, f"{origin}:{number}", text)
        for origin in ("stdlib", "package")
        for number in range(200)
    ]
    counts = prompts.write(documents, tmp_path, sys.version.split()[0])
    chosen = prompts.read(tmp_path, "prose")
    assert counts == {"code": 0, "prose": len(chosen)}
    assert chosen
    for prompt in chosen:
        document = Document("prose", "stdlib", prompt["source"], "")
        assert document.held_out
        assert prompts.MIN_CHARS <= len(prompt["text"]) <= prompts.MAX_CHARS
    assert json.loads((tmp_path / "prose.jsonl").read_text().splitlines()[0])["id"] == "prose-000"
