"""The process of a command from its first moment to its last."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

LAUNCH = [sys.executable, "-m", "specserve", "launch", "--target", "tiny"]
FLAGS = ["--device", "cpu", "--port", "0", "--oversubscribe", "--log-level", "warning"]


@pytest.fixture
def runtime_root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # short: sockets lie in it
        yield Path(folder)


def catches(pid: int, signum: int) -> bool:
    """Whether the process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (signum - 1) & 1)


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.15, 0.4])
def test_a_launch_told_to_stop_while_it_starts_ends_with_0_and_leaves_nothing(
    signum, delay_s, runtime_root
):
    process = subprocess.Popen(
        [*LAUNCH, *FLAGS],
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime_root)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not catches(process.pid, signal.SIGTERM):
        time.sleep(0.001)
    time.sleep(delay_s)
    process.send_signal(signum)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (0, "")
    assert list(runtime_root.iterdir()) == []


def test_handlers_come_before_anything_slow():
    program = """
import signal, sys
from specserve.processes import stop_signals
stop_signals.signal.signal = lambda *_: sys.exit(str(sorted(SLOW & set(sys.modules))))
SLOW = {"msgspec", "argparse", "logging", "socket", "subprocess", "specserve.cli"}
sys.argv[1:] = ["launch", "--target", "tiny"]
from specserve.__main__ import main
main()
"""
    result = subprocess.run(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False
    )
    assert result.stderr == "[]\n"


def test_there_is_no_moment_between_imports_and_the_command_in_which_a_stop_would_kill():
    program = """
import signal, sys
from specserve import __main__ as entry, cli
real, handlers = signal.signal, []
def handle(signum, handler):
    if signum == signal.SIGTERM:
        handlers.append(handler)
    return real(signum, handler)
signal.signal = handle
cli.main = lambda: 0
sys.argv[1:] = ["launch", "--target", "tiny"]
entry.main()
print(len(handlers) > 2, signal.SIG_DFL in handlers)
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (found.stdout, found.stderr) == ("True False\n", "")


def test_a_launch_that_has_ended_well_is_not_ended_otherwise_any_more():
    program = """
import atexit, os, signal, sys
from specserve import __main__ as entry, cli
cli.main = lambda: 0
atexit.register(os.kill, os.getpid(), signal.SIGTERM)
sys.argv[1:] = ["launch", "--target", "tiny"]
sys.exit(entry.main())
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize(("words", "exit_code"), [("launch", 0), ("info", 130)])
def test_a_stop_in_the_middle_of_an_import_ends_it_there_and_then(words, exit_code):
    """An exception would leave modules half made; the interpreter's end has crashed on that."""
    program = f"""
import atexit, builtins, os, signal, sys
from specserve import __main__ as entry
real = builtins.__import__
def stopped(name, *rest):
    if name == "msgspec":
        os.kill(os.getpid(), signal.SIGINT)
        signal.getsignal(signal.SIGINT)  # the interpreter looks for signals at calls
        print("went on")
    return real(name, *rest)
builtins.__import__ = stopped
atexit.register(print, "unwound")
sys.argv[1:] = ["{words}"]
sys.exit(entry.main())
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (found.returncode, found.stdout, found.stderr) == (exit_code, "", "")
