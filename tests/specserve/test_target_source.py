"""Where a target's files may be, and what is said when they are nowhere."""

import huggingface_hub
import pytest
from huggingface_hub import errors

from specserve.errors import InvalidField
from specserve.target_source import EMBEDDED_TARGET, locate_target


def test_no_target_is_the_embedded_one():
    assert locate_target("tiny") == EMBEDDED_TARGET


def test_a_folder_becomes_absolute(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert locate_target("mine") == tmp_path / "mine"


@pytest.mark.parametrize("name", ["", "nowhere", "a/b/c", __file__])
def test_what_is_neither_folder_nor_hub_id_is_refused(name):
    with pytest.raises(InvalidField, match=r"model\.target: '.*' is neither a folder nor a hub id"):
        locate_target(name)


OFFLINE = "Got: ConnectError: [Errno -2] Name or service not known\nAn error happened while"


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (
            errors.LocalEntryNotFoundError(OFFLINE),
            "the hub cannot be reached; a local folder may be given instead",
        ),
        (  # which wants the response that it was made of
            errors.RepositoryNotFoundError.__new__(errors.RepositoryNotFoundError),
            "the hub has no such repository, or does not show it to you",
        ),
        (OSError(OFFLINE), "Got: ConnectError: [Errno -2] Name or service not known"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_download_that_fails_is_one_line(monkeypatch, error, problem):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(InvalidField) as caught:
        locate_target("a/b")
    assert str(caught.value) == f"model.target: cannot fetch 'a/b': {problem}"
