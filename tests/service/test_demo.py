"""The demonstration shows equal texts, and stops what it started, however it ends."""

import signal
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143)],
)
def test_a_demonstration_told_to_stop_stops_its_service_first(signum: int, code: int):
    demo = subprocess.Popen(
        [sys.executable, "-m", "specserve.demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert demo.stdout
    for line in demo.stdout:
        if line.startswith("listening on"):
            break
    demo.send_signal(signum)
    _, stderr = demo.communicate(timeout=60)  # conftest looks for what is left
    assert demo.returncode == code
    assert "Traceback" not in stderr


@pytest.mark.slow
def test_a_demonstration_answers_twice_alike():
    ended = subprocess.run(
        [sys.executable, "-m", "specserve.demo"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("The capital of France is Paris.") == 2
    assert ended.stdout.count("the texts are equal\n")
