"""Where a target's files may be, and what is said when they are nowhere."""

import pytest

from specserve.errors import InvalidField
from specserve.target_source import EMBEDDED_TARGET, locate_target


def test_no_target_is_the_embedded_one():
    assert locate_target(None) == EMBEDDED_TARGET


def test_a_folder_becomes_absolute(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert locate_target("mine") == tmp_path / "mine"


@pytest.mark.parametrize("name", ["", "nowhere", "a/b/c", __file__])
def test_what_is_neither_folder_nor_hub_id_is_refused(name):
    with pytest.raises(InvalidField, match=r"model\.target: '.*' is neither a folder nor a hub id"):
        locate_target(name)
