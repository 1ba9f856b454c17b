"""Long work that is no training says how far it is."""

import logging
import os
import pty
import subprocess
import sys

from draft_node.training import progress
from draft_node.training.progress import _Lines, each, underway


def test_all_items_come_through_in_order():
    assert list(each("counting", range(5))) == [0, 1, 2, 3, 4]
    assert list(each("counting", iter("abc"))) == ["a", "b", "c"]


def test_a_log_has_a_line_now_and_then_with_the_time_to_go(caplog):
    caplog.set_level(logging.INFO, progress.__name__)
    now = iter([0.0, 1.0, 20.0, 21.0, 40.0])
    lines = _Lines("encoding", 100, lambda: next(now))
    for count in (5, 15, 5, 25):
        lines.advance(count)
    assert caplog.messages == [
        "encoding: 20 of 100, 80 s to go", "encoding: 50 of 100, 40 s to go",
    ]  # fmt: skip


def test_work_of_unknown_length_is_counted(caplog):
    caplog.set_level(logging.INFO, progress.__name__)
    now = iter([0.0, 16.0])
    _Lines("collecting text", None, lambda: next(now)).advance(7)
    assert caplog.messages == ["collecting text: 7 so far"]


def test_what_cannot_be_counted_is_said_before_it_begins(capsys):
    with underway("reading"):
        assert capsys.readouterr().err == "reading\n"


def test_a_terminal_has_a_bar():
    """Of a process of its own, whose stderr is one."""
    main, end = pty.openpty()
    words = "from draft_node.training.progress import each; list(each('encoding', range(3)))"
    subprocess.run([sys.executable, "-c", words], stderr=end, check=True)
    os.close(end)
    written = b""
    while True:
        try:
            part = os.read(main, 4096)
        except OSError:
            break
        if not part:
            break
        written += part
    os.close(main)
    assert b"encoding" in written
    assert b"3/3" in written
