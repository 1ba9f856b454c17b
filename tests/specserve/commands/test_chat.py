"""`specserve chat` against a real service; `test_conversation.py` has its commands line by line."""

import io
import sys
from contextlib import ExitStack

import pytest

from specserve.cli import main
from specserve.processes.local_service import local_service


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
        flags = ["--target", "tiny", "--oversubscribe", "--speculation", "off"]
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
