"""Row 27: a checkpoint that was made to harm is refused in one line, and nothing of it is run."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.reliability.checkpoints.hostile import CHECKPOINTS
from tests.reliability.figures import keep
from tests.reliability.scale import is_long

_MOST_RSS_KB = 900_000  # of any process of the launch; with a sound model some 450,000
_MOST_S = 60
# In `make test` those that are found out before a process of the model is started.
_NAMES = (
    list(CHECKPOINTS)
    if is_long()
    else ["code of its own", "a configuration without end", "an epsilon of a GGUF"]
)
_ROLES = ["target", "drafter"] if is_long() else ["target"]


def _refusal(role: str, model: Path) -> tuple[int, str, int]:
    """Exit code, output, and the largest resident memory of a process in KB."""
    flags = ["--target", str(model)]
    if role == "drafter":
        flags = ["--target", "tiny", "--speculation", "sync", "--drafter", str(model)]
    words = [sys.executable, "-m", "specserve", "launch", "--port", "0", "--no-http", *flags]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout
    rss_kb = 0
    while process.poll() is None:
        # Not by wait4: what it tells begins with the size of the process that started this one.
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
        rss_kb = max(rss_kb, int(peak[1]) if peak else 0)
        time.sleep(0.02)
    output = process.stdout.read().decode()
    process.stdout.close()
    return process.returncode, output, rss_kb


@pytest.mark.slow
@pytest.mark.parametrize("role", _ROLES)
@pytest.mark.parametrize("name", _NAMES)
def test_a_hostile_checkpoint_is_refused_in_one_line(tmp_path: Path, name: str, role: str):
    hostile, canary = CHECKPOINTS[name], tmp_path / "executed"
    model = hostile.write(tmp_path / "model", canary)
    began_s = time.monotonic()
    code, output, rss_kb = _refusal(role, model)
    last = output.splitlines()[-1]
    assert code not in (0, 1) or role == "drafter", output
    assert code != 0
    assert last.startswith("specserve: ")
    assert hostile.names in last
    assert "Traceback" not in output
    assert not canary.exists()
    assert rss_kb < _MOST_RSS_KB
    assert time.monotonic() - began_s < _MOST_S
    keep(27, "gRPC", **{f"{role}, {name}: largest memory_kb": rss_kb})
