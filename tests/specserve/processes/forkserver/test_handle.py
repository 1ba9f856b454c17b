"""A forkserver and those who ask it for processes, in a process that adopts orphans."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BEGIN = """
import json, os, select, signal, sys, time
from specserve.processes.process import adopt_orphans
from specserve.processes.forkserver.handle import Forkserver

adopt_orphans()
forkserver = Forkserver([], log_level="info", environment=dict(os.environ))
process = forkserver.fork("stand_in_node", sys.argv[1:], [sys.stdout.fileno()])
"""


def run(program: str, *words: str) -> list:
    """What `program` prints as JSON, of which there may be several lines."""
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    finished = subprocess.run(
        [sys.executable, "-c", BEGIN + program, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    return [json.loads(line) for line in finished.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("call", ["kill_group()", "send_signal(signal.SIGKILL)"])
def test_one_that_was_born_unheard_is_hit_and_its_forkserver_lives(call):
    (found,) = run(f"""
select.select([forkserver.socket], [], [])
process.{call}
status = process.wait()
print(json.dumps([process.pid > 0, status, forkserver.reap(), forkserver.alive]))
forkserver.kill()
""")
    assert found == [True, -9, False, True]


@pytest.mark.slow
def test_one_that_is_not_born_ends_with_its_forkserver():
    (found,) = run("""
os.kill(forkserver.pid, signal.SIGSTOP)
process.kill_group()
print(json.dumps([process.pid, process.poll(), forkserver.alive]))
""")
    assert found == [0, -9, False]


@pytest.mark.slow
def test_a_forked_process_is_what_a_spawned_one_would_be():
    words = ["--name", "déjà vu", "--path", os.fsdecode(b"/tmp/b\xe9")]
    heard, status = run(
        """
select.select([forkserver.socket], [], [])
forkserver.read()
print(json.dumps(process.wait()))
""",
        "tell",
        *words,
    )
    assert heard["argv"][1:-2] == ["tell", *words]
    assert heard["argv"][-2] == "--ready-fd"
    assert heard["name"] == "__main__"
    assert heard["num_threads"] == 1
    assert heard["is_leader"]
    assert status == 3
