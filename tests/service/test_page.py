"""The page at `/` in a real browser, in front of a real service with a draft process."""

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, Response, Route, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from specserve.client import Client
from tests.service.browser import NoBrowser, browser
from tests.service.chaos import end, launch_async
from tests.service.open_page import PROMPT, Opened, opening
from tests.service.test_failures import Launched
from tests.service.test_openai import url_of
from tests.specserve.api.http.conftest import events_of, send

MARKUP = "<script>window.struck = 1</script><img src=x onerror='window.struck = 1'> & <b>so</b>"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(browser())
        except NoBrowser as error:
            pytest.skip(str(error))
        yield opened


@pytest.fixture(scope="module")
def service(chromium: Browser) -> Iterator[Launched]:
    launched = launch_async("1+1", "speculation.min_survival=0")
    try:
        launched.address()
        yield launched
    finally:
        end(launched)


def page_of(service: Launched) -> str:
    return url_of(service).removesuffix("v1")


@pytest.fixture
def opened(chromium: Browser, service: Launched) -> Iterator[Opened]:
    """Fresh; whatever a test does with it, nobody else is asked, and there are no complaints."""
    with opening(chromium, page_of(service)) as found:
        yield found
    assert found.complaints == []


@pytest.fixture
def troubled(chromium: Browser, service: Launched) -> Iterator[Opened]:
    """The same for what browsers complain about by themselves: answers that refuse."""
    with opening(chromium, page_of(service)) as found:
        yield found
    assert all("Failed to load resource" in each for each in found.complaints), found.complaints


def answers_of(page: Page, path: str) -> list[Response]:
    """Filled with what the page is answered there from now on."""
    found: list[Response] = []
    page.on("response", lambda answer: found.append(answer) if answer.url.endswith(path) else None)
    return found


def origins_in(answer: Response) -> list[dict]:
    *chunks, done = events_of(answer.body())
    assert done == "[DONE]"
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return [token for choice in choices for token in choice.get("token_origins", ())]


def test_both_runs_are_shown_with_the_origins_that_the_api_tells(opened: Opened, service: Launched):
    opened.load()
    answers = answers_of(opened.page, "/v1/completions")
    opened.run(seed=7)
    with Client(service.address()) as client:
        text = client.generate(PROMPT, max_tokens=40, temperature=0.8, seed=7).text
    told, plain = (origins_in(answer) for answer in answers)
    assert {each["origin"] for each in plain} == {"plain"}
    assert len({each["origin"] for each in told} & {"drafted", "bonus", "recovery"}) > 1
    assert {each["cache_hit"] for each in told} >= {True, False}
    for name, tokens in (("speculative", told), ("plain", plain)):
        shown, spans = opened.pane(name)
        assert shown == text
        assert [classes for classes, _ in spans] == [f"token {each['origin']}" for each in tokens]
        for (_, title), each in zip(spans, tokens, strict=True):
            assert ("prepared" in title, "missed" in title) == (
                each["cache_hit"] is True, each["cache_hit"] is False,
            )  # fmt: skip
    for kind in ("prepared", "missed"):
        expect(opened.page.locator(f".text .round.{kind}").first).to_be_attached()
    for name in ("speculative", "plain"):
        expect(opened.page.locator(f"#{name} .speed")).to_contain_text(
            re.compile(r"^[\d.]+ tokens/s · 40 tokens in [\d.]+ s, the first after")
        )
    expect(opened.page.locator("#verdict")).to_contain_text("The texts are equal.")
    expect(opened.page.locator("#verdict")).to_contain_text("times the tokens a second of plain")


def test_a_chat_ends_with_a_token_that_is_no_text(opened: Opened):
    opened.load()
    opened.run("x = 1", is_chat=True, temperature=1, seed=9)  # it ends after 19 tokens
    expect(opened.page.locator("#verdict")).to_contain_text("The texts are equal.")
    for name in ("speculative", "plain"):
        ending = opened.page.locator(f"#{name} .token.ending")
        expect(ending).to_have_count(1)
        text = opened.pane(name)[0]
        assert text.endswith(ending.text_content())
        assert not text.removesuffix(ending.text_content()).endswith(">")


def test_figures_change_while_requests_run(opened: Opened):
    opened.load()
    page = opened.page
    stop = threading.Event()
    working = threading.Thread(target=keep_busy, args=(opened.url, stop))
    working.start()
    try:
        expect(page.locator("[data-figure=running] b")).to_have_text("2")
        expect(page.locator("[data-figure=hits]")).not_to_have_class(re.compile("past"))
        for name in ("throughput", "accept", "verify"):
            expect(page.locator(f"[data-figure={name}] b")).to_have_text(re.compile(r"[1-9]"))
            line = page.locator(f"[data-figure={name}] .stroke")
            expect(line).to_have_attribute("d", re.compile("M.*L"))  # of several looks
        assert 1 <= opened.tile("accept") <= 18
        assert 0 <= opened.tile("hits") <= 100
        expect(page.locator("#processes tr", has_text="target rank 0")).to_contain_text("busy")
        expect(page.locator("#processes tr", has_text="draft process 0")).to_contain_text("kB/s")
        expect(page.locator("#calibration .acceptance").first).to_be_visible()
    finally:
        stop.set()
        working.join()
    expect(page.locator("[data-figure=running] b")).to_have_text("0")
    expect(page.locator("[data-figure=throughput] b")).to_have_text("0.0")
    expect(page.locator("[data-figure=accept]")).to_have_class(re.compile("past"))


def keep_busy(url: str, stop: threading.Event) -> None:
    """Two samples at a time."""
    while not stop.is_set():
        fields = {"max_tokens": 150, "temperature": 0.8, "ignore_eos": True, "n": 2}
        send(url, "POST", "/v1/completions", {"prompt": PROMPT, **fields})


def test_markup_is_shown_as_text(opened: Opened):
    page = opened.load().page
    opened.run(MARKUP, max_tokens=8)
    page.unroute_all()
    # As if the model had answered with it.
    page.route("**/v1/completions", lambda route: answer_with(route, MARKUP))
    opened.run(MARKUP)
    for name in ("speculative", "plain"):
        assert opened.pane(name)[0] == MARKUP
        others = f"#{name} .text :not(span.token, span.round)"
        assert page.locator(others).count() == 0
    assert page.evaluate("window.struck") is None


def answer_with(route: Route, text: str) -> None:
    token = {"token": text, "bytes": list(text.encode()), "origin": "plain", "cache_hit": None}
    choice = {"index": 0, "text": text, "finish_reason": "length", "token_origins": [token]}
    body = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
    route.fulfill(status=200, content_type="text/event-stream", body=body)


def test_texts_that_differ_are_said_to(opened: Opened):
    page = opened.load().page
    texts = iter(["the quick fox", "the quiet fox"])
    page.route("**/v1/completions", lambda route: answer_with(route, next(texts)))
    opened.run()
    expect(page.locator("#verdict")).to_contain_text("The texts differ from character 7 on.")


def test_a_stop_ends_the_request(opened: Opened, service: Launched):
    page = opened.load().page
    opened.ask(max_tokens=1500)
    page.wait_for_selector("#speculative .token")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#speculative .problem")).to_have_text("stopped")
    expect(page.get_by_role("button", name="Run both")).to_be_enabled()
    expect(page.locator("#verdict")).to_be_hidden()
    expect(page.locator("[data-figure=running] b")).to_have_text("0")
    with Client(service.address()) as client:
        assert client.load().num_in_flight == 0


REFUSALS = [
    (429, {"retry-after": "1"}, "server.max_queued_requests: 2 requests are in flight", "in 1 s"),
    (503, {}, "draining: the service takes no new requests", "(503)"),
]


@pytest.mark.parametrize(("status", "headers", "words", "advice"), REFUSALS)
def test_refusals_are_said_plainly(troubled: Opened, status, headers, words, advice):
    page = troubled.load().page
    body = json.dumps({"error": {"message": words, "code": status}})
    page.route(
        "**/v1/completions", lambda route: route.fulfill(status=status, headers=headers, body=body)
    )
    troubled.ask()
    expect(page.locator("#speculative .problem")).to_contain_text(words)
    expect(page.locator("#speculative .problem")).to_contain_text(advice)
    expect(page.locator("#plain .problem")).to_be_hidden()


def test_what_the_service_refuses_is_said_in_its_words(troubled: Opened):
    troubled.load()
    troubled.ask("word " * 5000)
    problem = troubled.page.locator("#speculative .problem")
    expect(problem).to_contain_text(
        re.compile(r"^The service refuses \(400\): prompt: .* the limit is")
    )


def test_a_service_that_has_gone_is_unreachable_until_it_is_back(troubled: Opened):
    page = troubled.load().page
    page.route("**/*", lambda route: route.abort())
    expect(page.locator("#state")).to_have_text("unreachable")
    expect(page.locator("#banner")).to_contain_text("does not answer")
    expect(page.locator(".tile:not(.past)")).to_have_count(0)
    troubled.ask()
    expect(page.locator("#speculative .problem")).to_contain_text("does not answer")
    page.unroute_all()
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#banner")).to_be_hidden()


def test_a_key_is_asked_for_and_sent_from_then_on(troubled: Opened):
    page, sent = troubled.page, []

    def require(route: Route) -> None:
        sent.append(route.request.headers.get("authorization"))
        if sent[-1] == "Bearer open sesame":
            route.continue_()
        else:
            route.fulfill(status=401, body='{"error": {"message": "a key is needed"}}')

    page.route("**/status", require)
    page.route("**/v1/completions", require)
    page.goto(troubled.url)
    expect(page.locator("#state")).to_have_text("needs a key")
    page.get_by_label("This service asks for a key.").fill("open sesame")
    page.get_by_role("button", name="Use it").click()
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#key-form")).to_be_hidden()
    troubled.run()
    assert sent[0] is None
    assert sent[-1] == "Bearer open sesame"
    page.reload()  # the tab still knows it
    expect(page.locator("#state")).to_have_text("ready")


def test_columns_of_links_are_there_for_draft_processes_alone(opened: Opened):
    def without_drafts(route: Route) -> None:
        now = route.fetch().json()
        now["processes"] = [each for each in now["processes"] if each["role"] != "draft"]
        now["figures"] |= {"sent_per_s": [], "received_per_s": []}
        route.fulfill(json=now)

    page = opened.page
    page.route("**/status", without_drafts)
    page.goto(opened.url)
    cells, heads = page.locator("#processes td:visible"), page.locator("#processes th:visible")
    expect(heads).to_have_text(["process", "state", "pid"])
    expect(cells).to_have_count(2 * 3)  # of the API process and the target
    page.unroute_all()
    expect(heads).to_have_text(["process", "state", "pid", "to it", "from it"])
    expect(cells).to_have_count(3 * 5)


class Death(NamedTuple):
    """What the page showed of a draft process that was killed while a prompt ran twice."""

    state: str
    banner: str
    well: str
    verdict: str
    after: str  # of its row, once it was back
    pids: tuple[str, str]


def kill_until_shown(service: Launched, page: Page) -> None:
    """The first lives are back before a page that looks once a second has seen anything."""
    for _ in range(8):
        for pid in service.children("draft_node"):
            os.kill(pid, signal.SIGKILL)
        with suppress(PlaywrightTimeout):
            page.wait_for_selector("#banner:text('was killed by SIGKILL')", timeout=3000)
            return
    raise AssertionError("the page never said that a draft process was killed")


@pytest.fixture(scope="module")
def death(chromium: Browser, service: Launched) -> Iterator[Death]:
    """For all tests: the process that takes the dead one's place is none of a test's own."""
    with opening(chromium, page_of(service)) as opened:
        page = opened.load().page
        row = page.locator("#processes tr", has_text="draft process 0")
        expect(row).to_contain_text("attached")
        pid = row.locator("td.number").first
        before = pid.text_content()
        kill_until_shown(service, page)
        seen = (
            page.locator("#state").text_content(),
            page.locator("#banner").text_content(),
            row.get_attribute("data-well"),
        )
        opened.run()
        expect(row).to_contain_text("attached")
        expect(page.locator("#state")).to_have_text("ready")
        verdict = page.locator("#verdict").text_content()
        yield Death(*seen, verdict, row.text_content(), (before, pid.text_content()))
    assert opened.complaints == []


def test_a_draft_process_that_is_killed_shows(death: Death):
    assert death.state == "degraded"
    assert "draft process 0" in death.banner
    assert "was killed by SIGKILL; starting it again in " in death.banner
    assert death.well != "good"
    assert "The texts are equal." in death.verdict  # it costs speed and nothing else
    assert "is back" in death.after
    before, after = death.pids
    assert int(after) != int(before)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_on_a_narrow_screen(chromium: Browser, service: Launched, scheme):
    size = {"width": 360, "height": 800}
    with opening(chromium, page_of(service), viewport=size, color_scheme=scheme) as opened:
        opened.load().run()
        width = opened.page.evaluate("document.documentElement.scrollWidth")
        ground = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert width <= size["width"]
        light = sum(map(int, re.findall(r"\d+", ground))) / 3
        assert (light > 128) == (scheme == "light")
    assert opened.complaints == []
