"""A suggestion is what was meant, and there is none rather than a wrong one."""

import time

import pytest

from specserve.nearest import nearest

FLAGS = ["--max-tokens", "--max-batch-rows", "--hang-timeout-s", "--draft-timeout-s", "--top-k",
         "--top-p", "--temperature", "--kv-memory", "--kv-dtype", "-n", "--help"]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("--max-row", "--max-batch-rows"),  # words left out
        ("--max-batch-rowz", "--max-batch-rows"),  # a slip
        ("--max_tokens", "--max-tokens"),  # other joints
        ("--temp", "--temperature"),  # a beginning
        ("--temprature", "--temperature"),
        ("--kv-type", "--kv-dtype"),
        ("--hang-timeout", "--hang-timeout-s"),
        ("--timeout-s", None),  # begins otherwise, and would be one of two
        ("--max", None),  # the beginning of two
        ("--top-q", None),  # as near to one as to the other
        ("--rows", None),
        ("--te", None),  # too short to say anything
        ("--tokens", None),
        ("--colour", None),
        ("--", None),
        ("", None),
    ],
)
def test_what_was_meant(name: str, meant: str | None):
    assert nearest(name, FLAGS) == meant


def test_a_name_that_is_known_is_itself():
    assert nearest("--top-k", FLAGS) == "--top-k"


def test_of_nothing_nothing_is_near():
    assert nearest("--top-k", []) is None


def test_paths_are_names_too():
    paths = ["/v1/completions", "/v1/chat/completions", "/v1/models", "/health"]
    assert nearest("/v1/chat/completion", paths) == "/v1/chat/completions"
    assert nearest("/v1/model", paths) == "/v1/models"
    assert nearest("/v1/embeddings", paths) is None


def test_what_is_too_long_to_be_a_name_is_not_compared():
    began_s = time.monotonic()
    assert nearest("--max-tokens" * 100_000, FLAGS) is None
    assert time.monotonic() - began_s < 1
