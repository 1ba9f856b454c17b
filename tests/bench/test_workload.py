"""The prompts of the benches."""

from bench.workload import Workload

PROMPTS = [[number] * (20 + 7 * number % 50) for number in range(64)]


def test_equal_arguments_draw_equal_batches():
    first, second = Workload(PROMPTS[:8]), Workload(PROMPTS[:8])
    assert first.batch(3, 64) == second.batch(3, 64)
    assert first.batch(3, 64) == second.batch(3, 64)


def test_batches_move_on_through_the_prompts():
    workload = Workload(PROMPTS[:4])
    seen = [workload.batch(1, 64)[0] for _ in range(5)]
    assert seen[0] != seen[1]
    assert seen[4] == seen[0]


def test_cut_prompts_still_differ_in_length():
    long = [list(range(number, number + 60)) for number in range(16)]
    batch = Workload(long).batch(16, 48)
    lens = [len(prompt) for prompt in batch]
    assert max(lens) == 48
    assert 32 <= min(lens) < 48
    assert [prompt[-1] for prompt in batch] == [prompt[-1] for prompt in long]


def test_a_long_prompt_has_the_wanted_length():
    assert len(Workload(PROMPTS[:4]).long_prompt(700)) == 700
