"""What is read off the arrival times of a batch."""

import pytest

from bench.records import BatchTrace


def trace(*arrivals_s: list[float]) -> BatchTrace:
    ids = [[0] * len(row) for row in arrivals_s]
    return BatchTrace(arrivals_s=list(arrivals_s), token_ids=ids, total_s=max(map(max, arrivals_s)))


def test_throughput_of_a_call_counts_all_tokens_over_all_its_time():
    assert trace([1.0, 2.0], [2.0, 4.0]).tokens_per_s == pytest.approx(1.0)


def test_the_first_token_is_that_of_the_last_row():
    assert trace([0.5, 2.0], [1.5, 2.0]).first_token_s == 1.5


def test_decode_rate_covers_only_the_time_in_which_all_rows_decode():
    # Row 0 decodes alone until 3.0, row 1 alone after 5.0; between them a round takes a second.
    batch = trace([1.0, 2.0, 3.0, 4.0, 5.0], [3.0, 4.0, 5.0, 5.1, 5.2])
    assert batch.decode_tokens_per_s == pytest.approx(2.0)
    assert batch.round_s == pytest.approx(1.0)
    assert batch.intervals_s == pytest.approx([1.0, 1.0])


def test_a_single_row_has_as_many_rounds_as_tokens_after_the_first():
    assert trace([1.0, 1.5, 2.0, 2.5]).round_s == pytest.approx(0.5)
