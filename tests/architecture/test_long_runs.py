"""What is left to long runs: which tests a line names, and lines that name none."""

import pytest

from tests.long_runs import is_named, named, without_meaning

ONE = "tests/a/test_it.py::test_one[1+1-sync]"
OTHER = "tests/a/test_it.py::test_one[1+1-async]"
ELSEWHERE = "tests/b/test_it.py::test_one[1+1-sync]"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (ONE, {ONE}),
        ("tests/a/test_it.py::test_one", {ONE, OTHER}),
        ("tests/a/test_it.py", {ONE, OTHER}),
        ("tests/a/test_it.py::test_one[*-sync]", {ONE}),
        ("tests/a/test_it.py::*[1+1-a*", {OTHER}),
        ("tests/a/test_it.py::test_on", set()),
        ("tests/a/test_it.py::test_one[1+1", set()),
        ("tests/a/test_it.py::test_one[1.1-sync]", set()),
    ],
)
def test_a_line_names_an_id_or_what_it_begins_with(line: str, found: set[str]):
    assert named([ONE, OTHER, ELSEWHERE], [line]) == found
    assert {each for each in (ONE, OTHER, ELSEWHERE) if is_named(each, line)} == found


def test_a_line_without_meaning_is_told_where_its_file_is_there():
    gone = "tests/a/test_it.py::test_gone"
    absent = "tests/c/test_it.py::test_one"
    assert without_meaning([ONE, ELSEWHERE], [ONE, gone, absent]) == [gone]
