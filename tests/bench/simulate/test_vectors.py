"""Every figure that SSD's equations are tested with comes out of formulas, and of simulation."""

import pytest

from bench.simulate.results import Vector
from bench.simulate.vectors import compare


@pytest.fixture(scope="module")
def vectors() -> list[Vector]:
    return compare(1500)


def test_formulas_give_what_was_found_without_them(vectors):
    assert len(vectors) > 20
    off = {each.name: each.formula / each.stated - 1 for each in vectors}
    assert {name: share for name, share in off.items() if abs(share) > 1e-5} == {}


def test_systems_that_can_be_built_do_what_the_formulas_say(vectors):
    made = {each.name: each for each in vectors if each.simulated is not None}
    assert {name.split(":")[0].split(",")[0] for name in made} == {
        "tokens a round",
        "synchronous over plain",
        "Theorem 7",
        "Corollary 16",
        "shipped fan-out",
    }
    off = {name: each.simulated / each.formula - 1 for name, each in made.items()}
    assert {name: share for name, share in off.items() if abs(share) > 0.06} == {}


def test_the_shipped_fan_out_is_the_one_that_brute_force_finds(vectors):
    shipped = [each for each in vectors if each.name.startswith("shipped fan-out")]
    assert len(shipped) == 3
    assert all(each.simulated == pytest.approx(each.stated, abs=1e-6) for each in shipped)
