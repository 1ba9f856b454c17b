"""Which repetitions count."""

import msgspec
import pytest

from bench.comparison import Triple
from bench.processes import Usage
from bench.records import BatchTrace, ForwardTimes
from bench.summary import decode_row, quiet
from specserve.errors import InvalidField


def triple(waited_s: float, served_s: float = 1.0, ran_s: float = 0.5) -> Triple:
    """Two tokens in `served_s` against one second; the target waited `waited_s` of its time."""
    ran = Usage(ran_s=0.5)
    return Triple(
        batch_size=1,
        prompt_lens=[3],
        temperature=0.0,
        served=BatchTrace(
            arrivals_s=[[served_s / 2, served_s]],
            token_ids=[[1, 2]],
            total_s=served_s,
            usage={"target": Usage(ran_s=ran_s, waited_s=waited_s), "api": ran, "client": ran},
        ),
        transformers=BatchTrace(
            arrivals_s=[[0.5, 1.0]], token_ids=[[1, 3]], total_s=1.0, usage={"transformers": ran}
        ),
        bare=ForwardTimes(steps_s=[0.4], prompt_s=0.0),
        reported_round_s=0.5,
    )


def test_disturbed_repetitions_are_left_out_where_enough_are_quiet():
    assert len(quiet([triple(0.0), triple(0.6), triple(0.01), triple(0.04)])) == 3


def test_of_a_noisy_run_the_quietest_three_count():
    shares = [t.waited_share for t in quiet([triple(s) for s in (0.5, 0.3, 0.9, 0.2)])]
    assert shares == [0.2, 0.3, 0.5]


def test_the_figures_of_a_row_follow_their_definitions():
    row = decode_row([triple(0.0, served_s=0.5)] * 3)
    assert row.ratio_to_transformers == pytest.approx(2.0)
    assert row.overhead.value == pytest.approx(0.25 / 0.4)
    assert row.equal_token_share == pytest.approx(0.5)
    assert row.cpu_us_per_token["api"] == pytest.approx(250_000)
    assert row.cpu_ratio is not None
    assert row.cpu_ratio.value == pytest.approx(1.0)


def test_calls_too_short_to_be_counted_say_nothing_of_processor_time():
    row = decode_row([triple(0.0, ran_s=0.0), triple(0.0, ran_s=0.25), triple(0.0, ran_s=0.25)])
    assert row.cpu_ratio is not None
    assert (row.cpu_ratio.value, row.cpu_ratio.num_pairs) == (pytest.approx(2.0), 2)
    assert decode_row([triple(0.0, ran_s=0.0)] * 3).cpu_ratio is None


def test_repetitions_whose_rows_never_decoded_side_by_side_are_left_out():
    short = triple(0.0)
    short = msgspec.structs.replace(
        short,
        served=msgspec.structs.replace(
            short.served, arrivals_s=[[0.1, 0.2], [0.3, 0.4]], token_ids=[[1, 2]] * 2
        ),
    )
    row = decode_row([short, triple(0.0)])
    assert (row.num_repetitions, row.overhead.num_pairs) == (1, 1)
    with pytest.raises(InvalidField, match="--tokens"):
        decode_row([short])
