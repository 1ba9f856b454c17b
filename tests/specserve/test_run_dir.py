"""The private folder of a launch: closed to others, gone afterwards, never anybody else's."""

import pytest

from specserve.errors import Unsupported
from specserve.run_dir import run_dir


def test_the_folder_is_private_and_goes_away(tmp_path):
    with run_dir(tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "socket").touch()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_goes_away_after_an_error(tmp_path):
    with pytest.raises(ZeroDivisionError), run_dir(tmp_path):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []


def test_an_abandoned_folder_is_removed_and_a_held_one_is_not(tmp_path):
    abandoned = tmp_path / "specserve-abandoned"
    abandoned.mkdir()
    (abandoned / "lock").touch()
    with run_dir(tmp_path) as first, run_dir(tmp_path) as second:
        assert not abandoned.exists()
        assert first.exists()
        assert second.exists()


def test_what_is_not_of_a_launch_is_left_alone(tmp_path):
    without_lock = tmp_path / "specserve-notes"
    without_lock.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    (tmp_path / "specserve-link").symlink_to(elsewhere)
    with run_dir(tmp_path):
        assert without_lock.exists()
        assert (elsewhere / "lock").exists()


def test_a_root_too_long_for_socket_paths_is_refused(tmp_path):
    root = tmp_path / ("x" * 80)
    root.mkdir()
    with pytest.raises(Unsupported, match="too long for socket paths"), run_dir(root):
        pass
    assert list(root.iterdir()) == []
