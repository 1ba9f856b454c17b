"""At rising load fewer tokens are verified, and what is known of them is worth more."""

import pytest

from bench.simulate.loads import beliefs, budgets, conclusion
from bench.simulate.results import Load

SIZES = (16, 64, 192)


@pytest.fixture(scope="module")
def by_arm() -> dict[str, list[Load]]:
    """Of policies and of beliefs, by load."""
    found: dict[str, list[Load]] = {}
    for load in (*budgets(SIZES, 16), *beliefs(SIZES, 16)):
        found.setdefault(load.arm, []).append(load)
    return found


@pytest.mark.parametrize("policy", ["causal", "barrier, async"])
def test_verify_budgets_fall_with_load(policy, by_arm):
    """DSpark, figure 8: from whole blocks, smoothly."""
    first, middle, last = (load.verify_budget for load in by_arm[policy])
    assert first > 5.5
    assert first > middle > last
    assert 2 < last < 4


def test_whatever_is_drafted_is_verified_where_nobody_weighs_it(by_arm):
    assert all(load.verify_budget > 5.5 for load in by_arm["whole blocks"])
    assert all(
        load.verify_budget == pytest.approx(2, abs=0.1) for load in by_arm["one token (MTP-1)"]
    )


def test_weighing_is_at_least_as_fast_as_either_fixed_length(by_arm):
    for place in range(len(SIZES)):
        weighed = by_arm["causal"][place].tokens_per_s
        assert weighed > 0.98 * by_arm["whole blocks"][place].tokens_per_s
        assert weighed > 0.98 * by_arm["one token (MTP-1)"][place].tokens_per_s
    assert by_arm["causal"][-1].tokens_per_s > 1.15 * by_arm["whole blocks"][-1].tokens_per_s


def test_who_knows_more_of_tokens_makes_more_of_a_busy_target(by_arm):
    """Where there is room for all blocks it makes no difference what is believed of them."""
    arms = ("none", "raw", "calibrated", "oracle")
    idle, busy = ([by_arm[arm][place].tokens_per_s for arm in arms] for place in (0, -1))
    assert idle == pytest.approx([idle[0]] * len(arms))
    assert busy[0] < busy[1] < busy[2] < busy[3]


def test_the_conclusion_is_of_the_figures(by_arm):
    told = conclusion(
        [load for arm in ("none", "raw", "calibrated", "oracle") for load in by_arm[arm]]
    )
    ratio = by_arm["calibrated"][-1].tokens_per_s / by_arm["raw"][-1].tokens_per_s
    assert f"{ratio:.2f} times for 192" in told
