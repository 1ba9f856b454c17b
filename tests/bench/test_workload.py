"""The prompts of the benches."""

from bench.workload import Workload
from specserve.target_source import EMBEDDED_TARGET


def test_equal_arguments_draw_equal_batches():
    first, second = Workload(EMBEDDED_TARGET, 8), Workload(EMBEDDED_TARGET, 8)
    assert first.batch(3, 64) == second.batch(3, 64)
    assert first.batch(3, 64) == second.batch(3, 64)


def test_batches_move_on_through_the_prompts():
    workload = Workload(EMBEDDED_TARGET, 4)
    seen = [workload.batch(1, 64)[0] for _ in range(5)]
    assert seen[0] != seen[1]
    assert seen[4] == seen[0]


def test_cut_prompts_still_differ_in_length():
    lens = [len(prompt) for prompt in Workload(EMBEDDED_TARGET, 16).batch(16, 48)]
    assert max(lens) == 48
    assert 32 <= min(lens) < 48


def test_a_long_prompt_has_the_wanted_length():
    assert len(Workload(EMBEDDED_TARGET, 4).long_prompt(700)) == 700
