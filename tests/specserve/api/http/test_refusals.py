"""Every kind of error is one status, one type, and a text that is meant for clients."""

import pytest

from specserve.api.http.refusals import refusal_of
from specserve.errors import (
    Busy,
    Cancelled,
    DeadlineExceeded,
    Exhausted,
    Failed,
    InvalidField,
    Leaving,
    NotFound,
    SpecserveError,
    Unavailable,
    Unsupported,
)


@pytest.mark.parametrize(
    ("error", "code", "kind", "param"),
    [
        (InvalidField("top_k", "is odd"), 400, "invalid_request_error", "top_k"),
        (InvalidField("chat", "is odd"), 400, "invalid_request_error", "messages"),
        (
            InvalidField("chat.messages[1].role", "is odd"),
            400,
            "invalid_request_error",
            "messages[1].role",
        ),
        (InvalidField("token_ids", "is odd"), 400, "invalid_request_error", "prompt"),
        (Unsupported("spec: no"), 400, "invalid_request_error", None),
        (NotFound("model: no"), 404, "not_found_error", "model"),
        (DeadlineExceeded("late"), 408, "timeout_error", None),
        (Exhausted("reader: lags"), 429, "rate_limit_error", None),
        (Busy("full", 3), 429, "rate_limit_error", None),
        (Cancelled("aborted"), 499, "cancelled_error", None),
        (Unavailable("target lost"), 503, "service_unavailable_error", None),
        (Leaving("draining", 30), 503, "service_unavailable_error", None),
        (Failed("the model gives no numbers"), 500, "server_error", None),
    ],
)
def test_a_kind_is_a_status(error, code, kind, param):
    refusal = refusal_of(error)
    assert (refusal.code, refusal.type, refusal.param) == (code, kind, param)
    assert str(error).partition(": ")[2] in refusal.message


def test_who_is_to_come_again_is_told_when_and_nobody_else():
    assert refusal_of(Busy("full", 3)).headers == {"retry-after": "3"}
    assert refusal_of(Exhausted("reader: lags")).headers == {}
    assert refusal_of(Leaving("draining", 30)).headers == {"retry-after": "30"}
    assert refusal_of(Unavailable("target lost")).headers == {}
    assert refusal_of(DeadlineExceeded("deadline: it passed")).headers == {
        "x-should-retry": "false"
    }


@pytest.mark.parametrize("error", [SpecserveError("at 0x7f: 1234"), KeyError("1234")])
def test_a_defect_is_a_number_in_the_log(error, caplog):
    refusal = refusal_of(error)
    assert (refusal.code, refusal.type) == (500, "server_error")
    assert "1234" not in refusal.message
    assert "1234" in caplog.text
    assert refusal.message.split()[-1] in caplog.text


def test_a_message_is_one_line():
    assert refusal_of(Failed("two\n  lines")).message == "two lines"
