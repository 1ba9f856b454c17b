"""HTTP beside gRPC: how passes become a ratio, and a whole run in small."""

import msgspec
import pytest

from bench.http_overhead.__main__ import main
from bench.http_overhead.asking import Measurement
from bench.http_overhead.report import (
    Results,
    is_same_text,
    over_grpc,
    own_over_grpc,
    verdict_of,
)
from bench.peers.records import Answer, Call
from bench.writing import REPORT_FILE, RESULTS_FILE


def measured(
    api: str, pass_number: int, total_s: float, text: str = "a", waited_s: float = 0.0
) -> Measurement:
    answer = Answer(first_token_s=0.1, num_tokens=12, text=text)
    return Measurement(
        api=api,
        pass_number=pass_number,
        call=Call(answers=[answer], total_s=total_s),
        api_ran_s=0.1,
        client_ran_s=0.1,
        target_ran_s=0.5,
        target_waited_s=waited_s,
    )


def test_calls_of_one_pass_are_compared_whatever_their_order():
    found = [
        measured("grpc", 1, 2.0),
        measured("http", 1, 4.0),
        measured("http", 2, 40.0),
        measured("grpc", 2, 20.0),
    ]
    ratio = over_grpc(found)
    assert (ratio.value, ratio.low, ratio.high, ratio.num_pairs) == (0.5, 0.5, 0.5, 2)
    assert "(goal 0.97): missed;" in verdict_of(ratio, own_over_grpc(found))


def test_time_in_which_others_had_the_core_is_told_apart():
    found = [measured("grpc", 1, 3.0, waited_s=1.0), measured("http", 1, 5.0, waited_s=3.0)]
    assert (over_grpc(found).value, own_over_grpc(found).value) == (0.6, 1.0)


def test_a_goal_within_the_interval_is_open_and_below_the_value_reached():
    open_ones = [measured("grpc", n, 1.0) for n in range(5)]
    open_ones += [measured("http", n, s) for n, s in enumerate([0.9, 1.1, 1.1, 1.0, 1.2])]
    ratio = over_grpc(open_ones)
    assert "open: the interval holds the goal;" in verdict_of(ratio, ratio)
    equal = [measured(api, n, 1.0) for n in range(3) for api in ("grpc", "http")]
    ratio = over_grpc(equal)
    assert "(goal 0.97): reached;" in verdict_of(ratio, ratio)


def test_a_text_that_differs_in_one_pass_is_noticed():
    found = [measured(api, n, 1.0) for n in range(2) for api in ("grpc", "http")]
    assert is_same_text(found)
    assert not is_same_text([*found[:3], measured("http", 1, 1.0, text="b")])


@pytest.mark.slow
def test_a_whole_run_asks_the_same_of_both(tmp_path):
    words = ["--target", "tiny", "--streams", "2", "--passes", "2", "--max-tokens", "8"]
    words += ["--num-prompts", "2", "--flags", "--speculation off --oversubscribe"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    results = msgspec.json.decode((tmp_path / RESULTS_FILE).read_bytes(), type=Results)
    assert [(one.api, one.pass_number) for one in results.measurements] == [
        ("http", 1),
        ("grpc", 1),
        ("grpc", 2),
        ("http", 2),
    ]
    assert results.is_same_text
    assert all(len(one.call.answers) == 2 for one in results.measurements)
    assert all(0 <= one.api_ran_s < 60 for one in results.measurements)
    assert all(0 <= one.target_ran_s <= one.call.total_s for one in results.measurements)
    assert results.http_over_grpc.num_pairs == 2
    report = (tmp_path / REPORT_FILE).read_text(encoding="utf-8")
    assert results.verdict in report
