"""What others see of a process that shows another command line."""

import subprocess
import sys
from pathlib import Path

import pytest

from specserve.processes.forkserver.messages import ROOM

PROGRAM = """
import sys
from specserve.processes.forkserver.messages import show
show(sys.stdin.readline().strip().split(","))
print("shown", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python,-m,draft_node", [b"python", b"-m", b"draft_node"]),
        ("déjà,vu", ["déjà".encode(), b"vu"]),
        ("x" * 400, [b"x" * 400]),
    ],
)
def test_others_see_these_words_and_nothing_of_the_old_ones(words, expected):
    line, room = shown(words)
    assert line.rstrip(b"\0").split(b"\0") == expected
    assert len(line) == room


def test_words_without_room_are_cut_off():
    line, room = shown("y" * 5000)
    assert len(line) == room
    assert line == b"y" * (room - 1) + b"\0"


def shown(words: str) -> tuple[bytes, int]:
    """The line of a process that shows `words`, and the bytes there were for it."""
    command = [sys.executable, "-c", PROGRAM, ROOM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{words}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline() == b"shown\n"
        line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        process.communicate(b"")
    return line, sum(len(word.encode()) + 1 for word in command)
