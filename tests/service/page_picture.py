"""Take the picture of the page that README shows: `python -m tests.service.page_picture PATH`.

SmolLM2, padded to the cost of a target of 1B parameters, with SmolLM2 itself as the draft model in
a draft process, answers a prompt twice. Takes a minute or two on two quiet cores.
"""

import argparse
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.figures import reduce_colours
from specserve.client import ChatMessage, Client
from tests.service.browser import browser
from tests.service.chaos import end
from tests.service.open_page import opening
from tests.service.test_failures import Launched
from tests.service.test_openai import url_of

FLAGS = "--target smollm2 --ballast 1B --topology 1+1 --speculation async --drafter smollm2"
PROMPT = "Write a Python class for a bank account with deposit, withdraw and balance, and use it."
_SIZE = {"width": 1240, "height": 900}
_LONGEST_MS = 600_000
_WORKING_MS = 20_000  # of which the lines show what happened


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the picture of the page.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--flags", default=FLAGS, help=f"of the launch (default: {FLAGS})")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--max-tokens", type=int, default=120)
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    arguments = parser.parse_args()
    launched = Launched(*arguments.flags.split())
    try:
        launched.address()
        take(launched, arguments)
    finally:
        end(launched)


def take(launched: Launched, arguments: argparse.Namespace) -> None:
    """Of the page when both answers are there."""
    url, look = url_of(launched).removesuffix("v1"), arguments.scheme
    with browser() as chromium, opening(chromium, url, viewport=_SIZE, color_scheme=look) as opened:
        opened.load()
        opened.page.set_default_timeout(_LONGEST_MS)
        opened.run(arguments.prompt, is_chat=True, temperature=0, max_tokens=arguments.max_tokens)
        with working(launched.address(), arguments.prompt):
            opened.page.wait_for_timeout(_WORKING_MS)
            opened.show_beginnings()
            opened.page.screenshot(path=arguments.path, full_page=True)
    reduce_colours(arguments.path)


@contextmanager
def working(address: str, prompt: str) -> Iterator[None]:
    """Somebody else asks meanwhile, so that there are figures of now."""
    stop = threading.Event()

    def ask() -> None:
        with Client(address) as client:
            messages = [ChatMessage("user", prompt)]
            for _ in client.stream(messages, temperature=0, max_tokens=1000, ignore_eos=True):
                if stop.is_set():
                    return

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        stop.set()
        asking.join()


if __name__ == "__main__":
    main()
