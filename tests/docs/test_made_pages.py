"""docs/api.md is what the code says, and docs/errors.md has every error that it can tell."""

import re

import msgspec

from specserve.api.http.bodies import ChatBody, CompletionBody
from specserve.errors import SpecserveError
from target_node.sampler import Fault
from tests.docs import api_page, errors_page, grpc_reference, http_reference, raised
from tests.docs.literal_texts import GAP, Sources
from tests.docs.struct_fields import comments_of, fields_of

AGAIN = "python -m tests.docs writes it"


def test_the_reference_is_what_the_code_says():
    assert api_page.PAGE.read_text(encoding="utf-8") == api_page.made(), AGAIN


def test_the_reference_says_what_everything_is():
    """Calls, paths and fields; what has no comment has a type, or a message that says it."""
    text = api_page.made()
    for path in http_reference.paths():
        assert path.text, path.path
    for service in grpc_reference.proto().service:
        assert f"### {service.name}\n" in text
        assert all(f"| `{method.name}` |" in text for method in service.method)
    for body in (CompletionBody, ChatBody):
        for name in body.__struct_fields__:
            assert f"| `{name}` |" in text


def test_the_page_of_errors_has_what_follows_from_the_code():
    text = errors_page.read()
    assert text == errors_page.made(text), AGAIN


def test_every_error_has_a_row_that_says_why_and_what_to_do():
    text = errors_page.read()
    assert errors_page.unwritten(text) == [], "python -m tests.docs says what to write"
    assert errors_page.silent(text) == []


def test_every_row_is_of_an_error():
    assert errors_page.stale(errors_page.read()) == []


def test_every_class_and_status_is_on_the_page():
    text = errors_page.read()
    for name, kind in raised.classes().items():
        if kind is not SpecserveError:
            (row,) = re.findall(rf"^\| `{kind.code}` \|.*$", text, re.MULTILINE)
            assert f"`{name}`" in row
    for name in ("UNIMPLEMENTED", *errors_page.HTTP_STATUSES):
        assert f"`{name}`" in text


def test_what_the_target_tells_of_a_row_is_on_the_page():
    text = errors_page.read()
    assert [fault for fault in Fault if f"`{fault.value.partition(';')[0]}`" not in text] == []


def test_every_exit_code_is_on_the_page():
    table = errors_page.read().partition("## Exit codes")[2].partition("\n## ")[0]
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert set(raised.exit_codes()) <= told
    assert told - set(raised.exit_codes()) == {143}  # 128 and SIGTERM, which is computed


def test_families_are_found_however_they_are_written(tmp_path):
    """Names, f-strings, constants, callers and loops over literals."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.py").write_text(
        "LIMIT, NAME = 3, 'engine.rows'\n"
        "def check(field, value):\n"
        "    raise Bad(field, f'{value} is more than {LIMIT}')\n"
        "def each(path):\n"
        "    for flag in ('--a', '--b'):\n"
        "        problem = f'{flag} is missing'\n"
        "        raise Bad(problem)\n"
        "    raise Bad(f'{path}: is gone')\n"
        "class Door:\n"
        "    def require(self, what='key'):\n"
        "        raise Bad(what)\n"
        "def _read(where):\n"
        "    raise Bad(where)\n"
        "_read('tools')\n"
    )
    (tmp_path / "one" / "b.py").write_text(
        "from one.a import check, NAME\ncheck('top_p', 1)\ncheck(field=NAME, value=2)\n"
        "def _read(text):\n    return text\n"
        "_read('of another function')\nrequire('of a function, not of the door')\n"
    )
    (tmp_path / "one" / "c.py").write_text("from two import check\ncheck('another', 1)\n")
    sources = Sources(tmp_path, ["one"])
    found = [sources.texts(call.at.other(call.node.args[0])) for call in sources.calls["Bad"]]
    assert sorted(map(sorted, found)) == [
        [f"{GAP}: is gone"],
        ["--a is missing", "--b is missing"],
        ["engine.rows", "top_p"],
        ["key"],
        ["tools"],
    ]


def test_a_beginning_is_what_stands_before_the_first_colon():
    assert raised.beginning("model.target: cannot read x: gone") == "model.target"
    assert raised.beginning("the service at * has gone: x") == "the service at *"
    assert raised.beginning("tools[*].type: '*' is not served") == "tools[*].type"
    assert raised.beginning("* is no folder") == "* is no folder"
    assert not raised.Family("X", "*: gone", "a.py").is_known


def test_an_error_without_a_row_is_found():
    rows = errors_page.rows_of(
        "## Settings\n| it begins with | told as | why | what to do |\n|---|---|---|---|\n"
        "| `a.b`, a path (`specserve/models/`) | | so | do |\n| `c` | | so | |\n"
    )
    assert [row.keys for row in rows] == [("a.b",), ("c",)]
    assert [row.scopes for row in rows] == [("specserve/models/",), ()]

    def row_of(told: str, module: str = "specserve/cli.py") -> object:
        return errors_page.row_of(raised.Family("X", told, module), rows)

    assert row_of("a.b") is rows[0]
    assert row_of("a.c") is None
    assert row_of("*") is None
    assert row_of("*: gone", "specserve/models/config.py") is rows[0]
    text = "## Settings\n| it begins with | told as | why | what to do |\n|---|---|---|---|\n"
    assert errors_page.stale(f"{text}| `gone` | | so | do |\n") == ["gone"]
    assert errors_page.silent(f"{text}| `gone` | | so | |\n") == ["gone"]
    assert len(errors_page.unwritten(text)) == len(raised.families())


class _Told(msgspec.Struct):
    """For the test below."""

    first: int = 3  # as it is
    second: list[str] | None = None


def test_what_is_said_of_a_field_is_the_comment_behind_it():
    assert comments_of(_Told) == {"first": "as it is"}
    first, second = fields_of(_Told)
    assert (first.kind, first.default, first.text) == ("integer", "3", "as it is")
    assert (second.kind, second.default, second.is_required) == ("list of text", "", False)
