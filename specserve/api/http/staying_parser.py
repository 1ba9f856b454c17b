# pyright: strict
"""Reads requests that offer another protocol like all others, as a server that has none must.

httptools takes what follows the head of such a request for the other protocol, and so a body for
what is none: Java's own client makes that offer (h2c) with its first request. The head is read a
second time, without the offer.
"""

from typing import Any

import httptools

_OFFER = (b"upgrade", b"http2-settings")  # names of headers, and words of `connection`


class StayingParser:
    """What uvicorn asks of httptools' parser."""

    def __init__(self, protocol: Any) -> None:  # noqa: ANN401 - whatever has its callbacks
        """`protocol` has the head read so far as uvicorn keeps it, in `url` and `headers`.

        Its callbacks are to do nothing while `is_offer`: they come again.
        """
        self._protocol = protocol
        self._parser = self._new_parser()

    @property
    def is_offer(self) -> bool:
        """Whether the head that is read now offers another protocol."""
        # After CONNECT there is nothing but the other protocol.
        return self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT"

    def feed_data(self, data: bytes) -> None:
        """As httptools' does, and raises what it raises."""
        rest = memoryview(data)
        while True:
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as offer:
                if not self.is_offer:
                    raise
                rest = rest[offer.args[0] :]
                head = self._head()
                self._parser = self._new_parser()
                self._parser.feed_data(head)
            else:
                return

    def should_upgrade(self) -> bool:
        return False

    def get_http_version(self) -> str:
        return self._parser.get_http_version()

    def get_method(self) -> bytes:
        return self._parser.get_method()

    def should_keep_alive(self) -> bool:
        return self._parser.should_keep_alive()

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self._protocol)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        return parser

    def _head(self) -> bytes:
        """That of the request, without the offer."""
        version = self.get_http_version().encode()
        lines = [self.get_method() + b" " + self._protocol.url + b" HTTP/" + version]
        for name, value in self._protocol.headers:
            if name == b"connection":
                words = [word.strip() for word in value.split(b",")]
                value = b", ".join(word for word in words if word.lower() not in _OFFER)
            if name not in _OFFER:
                lines.append(name + b": " + value)
        return b"\r\n".join(lines) + b"\r\n\r\n"
