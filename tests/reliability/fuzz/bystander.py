"""Seeded requests over both APIs for as long as an attack lasts, and whether answers stay right."""

import http.client
import json
import logging
import threading
from dataclasses import dataclass, replace

from specserve.api.call import SpecOptions
from tests.exactness.workload import Outcome, SeededRequest, differing, run, seeded_requests

_CONCURRENCY = 4
_TIMEOUT_S = 60

log = logging.getLogger(__name__)


@dataclass
class Answers:
    """Over both APIs."""

    num_requests: int = 0
    num_failed: int = 0
    num_wrong: int = 0


def requests_of(count: int, seed: int) -> list[SeededRequest]:
    """Short ones: many passes say more than a long one."""
    requests = seeded_requests(count, seed)
    return [
        replace(each, options=each.options | {"max_tokens": min(16, each.options["max_tokens"])})
        for each in requests
    ]


def plainly(address: str, requests: list[SeededRequest]) -> list[Outcome]:
    """The answers of plain decoding, by the same service before anything happens to it."""
    off = {"spec": SpecOptions(mode="off")}
    plain = [replace(each, options=each.options | off) for each in requests]
    return run(address, plain, concurrency=_CONCURRENCY)


class Bystander:
    """Asks in a thread of its own, one pass over gRPC, the next one over HTTP, and so on."""

    def __init__(
        self, address: str, http_port: int, requests: list[SeededRequest], plain: list[Outcome]
    ) -> None:
        self.answers = Answers()
        self._address, self._http_port = address, http_port
        self._requests, self._plain = requests, plain
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> "Bystander":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_TIMEOUT_S)
        assert not self._thread.is_alive(), "a request never ended"

    def one_pass(self, number: int) -> None:
        """All requests once."""
        self.answers.num_requests += len(self._requests)
        try:
            if number % 2:
                self.answers.num_wrong += self._wrong_over_http()
            else:
                found = run(
                    self._address, self._requests, concurrency=_CONCURRENCY, shuffle_seed=number
                )
                self.answers.num_wrong += len(differing(self._plain, found))
        except Exception:
            log.exception("a request failed")
            self.answers.num_failed += 1

    def _ask(self) -> None:
        number = 0
        while not self._over.is_set():
            self.one_pass(number)
            number += 1

    def _wrong_over_http(self) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self._http_port, timeout=_TIMEOUT_S)
        try:
            return sum(
                _ask(connection, request) != list(zip(plain.token_ids, plain.texts, strict=True))
                for request, plain in zip(self._requests, self._plain, strict=True)
            )
        finally:
            connection.close()


def _ask(
    connection: http.client.HTTPConnection, request: SeededRequest
) -> list[tuple[tuple[int, ...], str]]:
    """Tokens and text of each sample."""
    body = {"prompt": request.prompt, "return_token_ids": True, **request.options}
    connection.request("POST", "/v1/completions", json.dumps(body))
    answer = connection.getresponse()
    content = json.loads(answer.read())
    assert answer.status == 200, content
    return [(tuple(choice["token_ids"]), choice["text"]) for choice in content["choices"]]
