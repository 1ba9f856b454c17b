"""The page in a browser as tests handle it, and what the browser had to complain about."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect

PROMPT = "def read(path):\n    "
PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)


class Opened:
    """The page, and what its browser had to complain about."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.complaints: list[str] = []
        self.hosts: set[str] = set()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("pageerror", lambda error: self._heard("error", str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def load(self) -> "Opened":
        self.page.goto(self.url)
        self.page.wait_for_selector("body[data-looks]")
        return self

    def ask(self, prompt: str = PROMPT, *, is_chat: bool = False, **fields: float) -> None:
        """Fill the form and send it. `fields` by label, such as `seed=7`."""
        self.page.get_by_label("Prompt", exact=True).fill(prompt)
        usual = {"max_tokens": 40, "temperature": 0.8, "seed": 1}
        for name, value in (usual | fields).items():
            label = name.replace("_", " ").capitalize()
            self.page.get_by_label(label, exact=True).fill(str(value))
        self.page.get_by_label("as a chat").set_checked(is_chat)
        self.page.get_by_role("button", name="Run both").click()

    def run(self, prompt: str = PROMPT, *, is_chat: bool = False, **fields: float) -> None:
        self.ask(prompt, is_chat=is_chat, **fields)
        self.page.wait_for_selector("#verdict:not([hidden])")

    def pane(self, name: str) -> tuple[str, list[list[str]]]:
        """The text, and the classes and title of each token."""
        told = self.page.eval_on_selector_all(
            f"#{name} .token", "spans => spans.map((span) => [span.className, span.title])"
        )
        return self.page.locator(f"#{name} .text").text_content(), told

    def show_beginnings(self) -> None:
        """Of both texts, which are longer than their panes."""
        self.page.eval_on_selector_all(
            ".text", "texts => texts.forEach((text) => { text.scrollTop = 0; })"
        )

    def tile(self, name: str) -> float:
        return float(self.page.locator(f"[data-figure={name}] b").text_content())


@contextmanager
def opening(chromium: Browser, url: str, **context: object) -> Iterator[Opened]:
    """A new page, not loaded yet; in the end nobody but `url` may have been asked."""
    page = chromium.new_page(**context)
    try:
        found = Opened(page, url)
        yield found
        assert found.hosts == {urlsplit(url).netloc}
    finally:
        page.close()
