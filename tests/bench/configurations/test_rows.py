"""What the answers of hand-made arms are summed up to."""

import pytest

from bench.configurations.rows import Group, Setting, quiet, rows_of
from bench.services import rates
from bench.services.service import ASYNC, OFF, SYNC, Arm, Service
from specserve.sampling.verification.method import VerificationMethod
from tests.bench.services.traces import trace

PLAIN = Arm(service=Service(name="off", mode=OFF, flags=()))
SYNC_LM = Arm(service=Service(name="sync lm", mode=SYNC, flags=()))
ASYNC_LM = Arm(service=Service(name="async lm", mode=ASYNC, flags=(), num_drafts=1))
ASYNC_FORESEEABLE = Arm(service=ASYNC_LM.service, method=VerificationMethod.FORESEEABLE)
AT_1 = Setting(ballast="30M", domain="code", temperature=1.0)


def group(number: int = 0, *, foreign_share: float = 0.0) -> Group:
    """Plainly 10 tokens a second, synchronously 12, asynchronously 15 and 20."""
    hits = [True, False, True, True]
    traces = {
        PLAIN: trace([1] * 12, round_s=0.1, is_speculative=False, foreign_share=foreign_share),
        SYNC_LM: trace([3, 3, 3, 3], round_s=0.25),
        ASYNC_LM: trace([4, 1, 4, 3], round_s=0.2, hits=hits),
        ASYNC_FORESEEABLE: trace([4, 4, 4], round_s=0.2, hits=[True, True, True]),
    }
    return Group(number, traces)


def rows(groups: list[Group]):
    return {(row.arm, row.method): row for row in rows_of(AT_1, groups)}


def test_rates_are_those_of_decoding_rounds_and_ratios_pair_the_groups():
    found = rows([group(0), group(1), group(2)])
    plain, sync = found["off", "any"], found["sync lm", "coupled"]
    own = found["async lm", "coupled"]
    assert plain.tokens_per_s.value == pytest.approx(10.0)
    assert plain.ratio_to_off is None
    assert sync.ratio_to_off.value == pytest.approx(1.2)
    assert own.tokens_per_s.value == pytest.approx(15.0)
    assert (own.ratio_to_off.low, own.ratio_to_off.high) == pytest.approx((1.5, 1.5))
    assert own.accept_len.value == pytest.approx(3.0)
    assert own.parts.round_ms == pytest.approx(200.0)


def test_hits_are_counted_among_look_ups():
    traces = [group().traces[ASYNC_LM]]
    assert rows([group()])["async lm", "coupled"].hit_rate.value == pytest.approx(0.75)
    assert rates.value(traces, rates.hit_len) == pytest.approx(11 / 3)
    assert rates.value(traces, rates.miss_len) == pytest.approx(1.0)
    assert rows([group()])["sync lm", "coupled"].hit_rate is None


def test_predicted_speed_comes_from_reported_parts_or_else_from_processor_time():
    by_cpu = rows([group(0)])["sync lm", "coupled"]
    assert by_cpu.predicted == pytest.approx(3.0 / 2.5)
    assert by_cpu.parts.verify_ms is None
    reported = {"num_decode_rounds": 12.0, "forward_s": 1.2, "draft_s": 0.0}
    own = {"num_decode_rounds": 4.0, "forward_s": 0.6, "draft_s": 0.2}
    traces = group(0).traces | {
        PLAIN: trace([1] * 12, round_s=0.1, is_speculative=False, counters=reported),
        SYNC_LM: trace([3, 3, 3, 3], round_s=0.25, counters=own),
    }
    found = rows([Group(0, traces)])["sync lm", "coupled"]
    assert found.parts.verify_ms == pytest.approx(150.0)
    assert found.parts.draft_ms == pytest.approx(50.0)
    assert found.predicted == pytest.approx(3.0 / 2.0)


def test_what_the_service_counts_is_shown_and_the_rest_is_unknown():
    own = {"num_waves": 8.0, "num_late_waves": 2.0}
    hits = [True, False, True, True]
    traces = group().traces | {ASYNC_LM: trace([4, 1, 4, 3], round_s=0.2, hits=hits, counters=own)}
    assert rows([Group(0, traces)])["async lm", "coupled"].late_drafts == 0.25
    assert rows([group()])["async lm", "coupled"].late_drafts is None


def test_texts_are_compared_where_equality_is_promised():
    found = rows([group(0)])
    assert found["async lm", "coupled"].equal_texts == 1.0
    assert found["async lm", "foreseeable"].equal_texts is None


def test_groups_disturbed_by_others_are_left_out_where_enough_are_quiet():
    groups = [group(n) for n in range(11)] + [group(11, foreign_share=0.9)]
    assert [g.number for g in quiet(groups)] == list(range(11))
    assert rows(groups)["off", "any"].num_disturbed == 1
    assert len(quiet([group(n, foreign_share=0.9) for n in range(3)])) == 3


def test_nothing_measured_gives_no_rows():
    assert rows_of(AT_1, []) == []
