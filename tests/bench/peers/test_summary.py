"""From measurements to figures, on measurements with known ones."""

import msgspec
import pytest

from bench.peers.records import Answer, Arm, Call, Measurement
from bench.peers.summary import goals_of, rows_of, summary_of


def arm(peer, weights="bfloat16", mode="plain", threads=1):
    return Arm(peer=peer, mode=mode, weights=weights, threads=threads)


def measured(one, number, tokens_per_s, *, num_requests=2, text="the same"):
    total_s = 10 * num_requests / tokens_per_s
    answers = [
        Answer(first_token_s=(row + 1) / tokens_per_s, num_tokens=10, text=text)
        for row in range(num_requests)
    ]
    return Measurement(
        arm=one,
        num_requests=num_requests,
        pass_number=number,
        call=Call(answers=answers, total_s=total_s),
        foreign_share=0.1 * number,
    )


OURS, VLLM, LLAMA = arm("specserve"), arm("vllm"), arm("llama.cpp")


def test_speeds_are_medians_and_ratios_are_of_calls_of_one_pass():
    found = []
    for number, (ours, theirs) in enumerate([(100, 50), (10, 5), (300, 100)]):
        found += [measured(VLLM, number, theirs), measured(OURS, number, ours)]
    theirs, ours = rows_of(found)
    assert (ours.arm, ours.tokens_per_s) == (OURS, pytest.approx(100))
    assert (theirs.arm, theirs.tokens_per_s) == (VLLM, pytest.approx(50))
    assert ours.plain_over_this.value == ours.plain_over_this.high == 1
    assert theirs.plain_over_this.value == pytest.approx(2)  # of 2, 2 and 3
    assert theirs.plain_over_this.high == pytest.approx(3)
    assert theirs.plain_over_this.num_pairs == theirs.num_passes == 3
    assert theirs.first_token_ms == pytest.approx(1e3 * 1.5 / 50)
    assert theirs.foreign_share == pytest.approx(0.1)


def test_rows_are_apart_by_cores_and_requests():
    two = arm("specserve", threads=2)
    found = [
        measured(two, 0, 300),
        measured(OURS, 0, 200, num_requests=4),
        measured(OURS, 0, 100, num_requests=1),
    ]
    rows = [(row.arm.threads, row.num_requests, row.tokens_per_s) for row in rows_of(found)]
    assert rows == [
        (1, 1, pytest.approx(100)),
        (1, 4, pytest.approx(200)),
        (2, 2, pytest.approx(300)),
    ]


def test_without_our_plain_arm_in_a_pass_there_is_no_ratio_of_it():
    found = [measured(VLLM, 0, 50), measured(VLLM, 1, 50), measured(OURS, 1, 100)]
    theirs, _ = rows_of(found)
    assert (theirs.num_passes, theirs.plain_over_this.num_pairs) == (2, 1)
    [alone] = rows_of(found[:1])
    assert alone.plain_over_this is None
    assert alone.same_text_share is None
    assert goals_of([alone]) == []


def test_texts_are_the_same_up_to_their_first_difference():
    found = [measured(OURS, 0, 1, text="abcdefgh"), measured(VLLM, 0, 1, text="abcdxfgh")]
    assert rows_of(found)[1].same_text_share == pytest.approx(0.5)
    found[1] = measured(VLLM, 0, 1, text="abcd")
    assert rows_of(found)[1].same_text_share == pytest.approx(0.5)


def test_goals_are_judged_against_the_fastest_plain_arm_with_16_bit_weights():
    found = []
    for number in range(3):
        found += [
            measured(OURS, number, 160),
            measured(VLLM, number, 130),
            measured(LLAMA, number, 90),
            measured(arm("llama.cpp", "float16"), number, 100),
            measured(arm("llama.cpp", "Q4_1"), number, 500),
            measured(arm("llama.cpp", mode="ngram"), number, 400),
        ]
    vllm, llama = goals_of(rows_of(found))
    assert (vllm.peer, vllm.goal) == ("vllm", 1.3)
    assert vllm.verdict == "missed"
    assert (llama.against, llama.goal) == ("llama.cpp plain float16", 1.5)
    assert (llama.ratio.value, llama.verdict) == (pytest.approx(1.6), "reached")
    summary = summary_of([vllm, llama])
    assert summary["plain_over_vllm_threads_1_requests_2"] == pytest.approx(160 / 130)
    assert summary["plain_over_llama_cpp_threads_1_requests_2_lo"] == pytest.approx(1.6)
    assert len(summary) == 6


def test_results_keep_what_a_call_took_and_no_texts():
    call = measured(OURS, 0, 50, text="the same").call
    kept = call.without_texts()
    assert kept.tokens_per_s == call.tokens_per_s
    assert kept.first_token_s == call.first_token_s
    assert b"text" not in msgspec.json.encode(kept)
    assert b"the same" in msgspec.json.encode(call)
