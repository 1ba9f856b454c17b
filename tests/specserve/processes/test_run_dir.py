"""The private folder of a launch: closed to others, gone afterwards, never anybody else's."""

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from specserve.errors import Unsupported
from specserve.processes import run_dir as module
from specserve.processes.run_dir import run_dir


@pytest.fixture
def root_dir() -> Iterator[Path]:
    """Short, unlike `tmp_path`: a socket's path has some hundred bytes."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        yield Path(folder)


def test_the_folder_is_private_and_goes_away(root_dir):
    with run_dir(root_dir) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "socket").touch()
    assert list(root_dir.iterdir()) == []


def test_the_folder_goes_away_after_an_error(root_dir):
    with pytest.raises(ZeroDivisionError), run_dir(root_dir):
        _ = 1 / 0
    assert list(root_dir.iterdir()) == []


def test_an_abandoned_folder_is_removed_and_a_held_one_is_not(root_dir):
    abandoned = root_dir / "specserve-abandoned"
    abandoned.mkdir()
    (abandoned / "lock").touch()
    with run_dir(root_dir) as first, run_dir(root_dir) as second:
        assert not abandoned.exists()
        assert first.exists()
        assert second.exists()


def test_a_folder_that_another_launch_removed_before_it_was_locked_is_replaced(
    root_dir, monkeypatch
):
    real, locked = fcntl.flock, []

    def flock(file, operation):
        locked.append(file.name)
        if len(locked) == 1:
            with run_dir(root_dir):  # finds the folder with its lock in nobody's hands
                pass
        real(file, operation)

    monkeypatch.setattr(module.fcntl, "flock", flock)
    with run_dir(root_dir) as folder:
        assert not Path(locked[0]).parent.exists()
        assert folder.is_dir()
        assert Path(locked[-1]).parent == folder
    assert list(root_dir.iterdir()) == []


def test_what_is_not_of_a_launch_is_left_alone(root_dir):
    without_lock = root_dir / "specserve-notes"
    without_lock.mkdir()
    elsewhere = root_dir / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    (root_dir / "specserve-link").symlink_to(elsewhere)
    with run_dir(root_dir):
        assert without_lock.exists()
        assert (elsewhere / "lock").exists()


def test_a_root_too_long_for_socket_paths_is_refused(root_dir):
    root = root_dir / ("x" * 80)
    root.mkdir()
    with pytest.raises(Unsupported, match="too long for socket paths"), run_dir(root):
        pass
    assert list(root.iterdir()) == []
