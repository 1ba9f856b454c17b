"""Files of keys: what is one, and what is told of a line that has none, without quoting it."""

from pathlib import Path

import pytest

from specserve.errors import InvalidField
from specserve.settings.key_file import ApiKey, read_keys

KEY, OTHER = "0123456789abcdef", "sk-proj_~!$%&()*+,-./:;<=>?@[]^{|}"


def file_of(folder: Path, content: str | bytes) -> Path:
    path = folder / "keys"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(0o600)
    return path


def test_a_line_has_a_key_and_perhaps_a_name(tmp_path):
    text = f"# mine\n\n  alice   {KEY}  \r\n{OTHER}\n\t# theirs\nalice\t{KEY}2"
    assert read_keys(file_of(tmp_path, text), "x") == [
        ApiKey("alice", KEY, 3),
        ApiKey("", OTHER, 4),
        ApiKey("alice", KEY + "2", 6),
    ]


def test_no_log_has_a_key():
    named, nameless = ApiKey("alice", KEY, 3), ApiKey("", OTHER, 4)
    assert (repr(named), repr(nameless)) == ("ApiKey('alice')", "ApiKey(of line 4)")
    assert f"{[named, nameless]}" == "[ApiKey('alice'), ApiKey(of line 4)]"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "has no key; write one a line"),
        ("# nothing\n\n", "has no key"),
        ("short", "line 1 has a key of 5 characters; the least is 16"),
        (f"\n{KEY[:15]}", "line 2 has a key of 15 characters"),
        (f"alice in {KEY}", "line 1 has 3 words; write KEY, or NAME KEY"),
        (f"{'a' * 65} {KEY}", "line 1 has a name of 65 characters; the limit is 64"),
        (f"{KEY}\nbob {KEY}", "has one key twice, in lines 1, 2"),
        (f"{KEY}é", "line 1 has a character that is not printable ASCII"),
        (f"{KEY}\x00".encode(), "line 1 has a character that is not printable ASCII"),
        (f"{KEY}\x1b".encode(), "line 1 has a character that is not printable ASCII"),
        (b"\xff\xfe" + KEY.encode("utf-16-le"), "not printable ASCII"),
        (f"# {'x' * 2**20}\n{KEY}", "has more than 1048576 bytes"),
    ],
)
def test_what_is_no_file_of_keys_is_refused_by_line(content, told, tmp_path):
    with pytest.raises(InvalidField) as caught:
        read_keys(file_of(tmp_path, content), "server.api_key_file")
    assert told in str(caught.value)
    assert str(caught.value).startswith(f"server.api_key_file: {tmp_path}")
    assert KEY[:15] not in str(caught.value)


def test_a_folder_is_no_file_of_keys(tmp_path):
    with pytest.raises(InvalidField, match="cannot read"):
        read_keys(tmp_path, "x")
