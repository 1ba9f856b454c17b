"""`specserve train data` with a real service: what it writes, goes on from, and refuses."""

import fcntl
import signal
import subprocess
import sys
import time

import pytest

from draft_node.training.__main__ import main
from draft_node.training.chats.store import ChatStore
from specserve.api.call import SpecOptions
from specserve.client import Client
from specserve.models.tokenizer_files import load_tokenizer
from specserve.settings.target_source import EMBEDDED_TARGET

SMALL = ("--target", "tiny", "--rows", "16", "--threads", "1", "--max-tokens", "12")


def command(out, *flags: str) -> list[str]:
    words = [sys.executable, "-m", "specserve", "train", "data", "--out", str(out)]
    return [*words, *SMALL, *flags]


def run(out, *flags: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(out, *flags), capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_chats_are_the_targets_own_and_a_second_run_goes_on(tmp_path, capsys, service):
    out, questions = tmp_path / "chats", tmp_path / "questions"
    questions.write_text(
        "How do I open a file?\nWhat is a list?\nName eight words of a poem now, please!\n"
    )
    (tmp_path / "kept-out").write_text("name eight words of a poem now please")
    flags = ("--prompts", str(questions), "--exclude", str(tmp_path / "kept-out"))
    flags += ("--follow-ups", "1")
    first = run(out, "--tokens", "600", *flags)
    assert first.returncode == 0, first.stderr
    begun = list(ChatStore(out).exchanges())
    second = run(out, "--tokens", "4500", *flags)
    assert second.returncode == 0, second.stderr
    found = list(ChatStore(out).exchanges())
    assert found[: len(begun)] == begun
    assert sum(e.num_tokens for e in found) >= 4500 > sum(e.num_tokens for e in begun) >= 600

    tokenizer = load_tokenizer(EMBEDDED_TARGET)
    asked = [tokenizer.decode(e.prompt_ids, skip_special_tokens=False) for e in found]
    assert len({*asked}) == len(asked)
    for text, count in (("How do I open a file?", 1), ("a list?", 1), ("words of a poem", 0)):
        assert sum(text in prompt for prompt in asked) == count
    assert any("```python" in prompt for prompt in asked)  # about sources
    assert any(prompt.count("<|im_start|>user") == 2 for prompt in asked)  # second turns
    assert all(prompt.endswith("<|im_start|>assistant\n") for prompt in asked)
    greedy, plain = [e for e in found if e.temperature == 0][:4], SpecOptions(mode="off")
    with Client(service) as client:
        for e in greedy:
            answer = client.generate(e.prompt_ids, temperature=0, max_tokens=12, spec=plain)
            assert answer.samples[0].token_ids == e.answer_ids

    said = refusal(capsys, out, "--tokens", "5000", "--seed", "2")
    assert "--seed: 2: " in said
    assert "was begun with 0; choose another --out" in said


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_finished_is_kept_when_somebody_stops_it(tmp_path, number):
    asked = tmp_path / "asked"  # the model takes longer to ask than to answer
    asked.write_text("".join(f"How many are {n} and one?\n" for n in range(5000)))
    flags = ("--tokens", "9000000", "--prompts", str(asked), "--follow-ups", "0")
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(command(tmp_path, *flags), stderr=said)
    try:
        deadline = time.monotonic() + 120
        while not ChatStore(tmp_path).next_number:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        kept = ChatStore(tmp_path).next_number
        process.send_signal(number)
        assert process.wait(60) in (130, 143)
    finally:
        process.kill()
        process.wait()
    found = ChatStore(tmp_path)
    assert found.next_number >= kept
    text = (tmp_path / "said").read_text()
    if number == signal.SIGINT:
        assert f"tokens of {found.next_number} chats in {tmp_path}; stopped; the same" in text
    assert all(e.answer_ids for e in found.exchanges())


def refusal(capsys, out, *flags: str) -> str:
    """What the command says that refuses these, in this process: to start one takes seconds."""
    assert main(command(out, *flags)[4:]) == 2
    return capsys.readouterr().err


def test_a_folder_that_another_run_writes_to_is_refused(capsys, tmp_path):
    with (tmp_path / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = refusal(capsys, tmp_path, "--tokens", "100")
    assert f"--out: {tmp_path}: another run writes there" in said


def test_chats_of_who_knows_whom_are_not_gone_on_with(capsys, tmp_path):
    ChatStore(tmp_path).add(1, [], 100)
    assert "has chats but no data.json" in refusal(capsys, tmp_path, "--tokens", "100")


def test_a_bad_line_of_prompts_is_refused_before_anything_begins(capsys, tmp_path):
    (tmp_path / "asked").write_text('What is a list?\n{"prompt": 3}\n')
    flags = ("--tokens", "100", "--prompts", str(tmp_path / "asked"))
    assert "line 2 has no text" in refusal(capsys, tmp_path / "out", *flags)
    assert not (tmp_path / "out").exists()


def test_flags_that_cannot_be_split_are_refused(capsys, tmp_path):
    said = refusal(capsys, tmp_path, "--tokens", "100", "--flags", "'")
    assert '--flags: "\'": No closing quotation' in said


def test_a_target_without_a_chat_template_writes_none(capsys, tmp_path):
    for path in EMBEDDED_TARGET.iterdir():
        (tmp_path / path.name).symlink_to(path)
    config = tmp_path / "tokenizer_config.json"
    config.unlink()
    config.write_text("{}")
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    flags = ("--target", str(tmp_path), "--tokens", "100")
    assert "has no chat template, so it writes no chats" in refusal(
        capsys, tmp_path / "out", *flags
    )
