"""A real Chromium without a window, where there is one on this machine."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Playwright, sync_playwright

VARIABLE = "SPECSERVE_CHROMIUM"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_ADVICE = (
    "no Chromium found: apt-get install chromium, or python -m playwright install chromium, "
    f"or name one with {VARIABLE}"
)
# Containers give few rights for a sandbox, and little shared memory.
_FLAGS = ["--no-sandbox", "--disable-dev-shm-usage"]


class NoBrowser(Exception):
    """There is none here; says what to type to have one."""


def chromium_of(playwright: Playwright) -> str | None:
    """Its path: the one that is named, one that is installed, or playwright's own; None: none.

    Raises FileNotFoundError if there is none where the variable says.
    """
    if (named := os.environ.get(VARIABLE)) is not None:
        if not Path(named).is_file():
            raise FileNotFoundError(f"{VARIABLE}: {named} is no file; name a Chromium, or unset it")
        return named
    for name in _NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    own = playwright.chromium.executable_path
    return own if Path(own).is_file() else None


@contextmanager
def browser() -> Iterator[Browser]:
    """Raises NoBrowser."""
    with sync_playwright() as playwright:
        path = chromium_of(playwright)
        if path is None:
            raise NoBrowser(_ADVICE)
        opened = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        try:
            yield opened
        finally:
            opened.close()
