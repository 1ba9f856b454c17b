"""Small files of a folder are read, and what is none is not waited for."""

import os

import pytest

from specserve.models import model_files
from specserve.models.model_files import read_regular


def test_a_file_and_a_link_to_one_are_read(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file") == read_regular(tmp_path / "link") == b"content"


def test_what_has_no_end_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        with pytest.raises(OSError, match="is a device, a pipe or a socket"):
            read_regular(tmp_path / name)


def test_a_folder_and_a_missing_file_are_what_they_always_were(tmp_path):
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none")


def test_a_file_beyond_the_limit_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(model_files, "MOST_BYTES", 3)
    (tmp_path / "file").write_bytes(b"four")
    with pytest.raises(OSError, match="it has 4 bytes; the limit is 3"):
        read_regular(tmp_path / "file")
