"""What follows from figures: suspects, their second look, and the verdict over all."""

import msgspec
import pytest

from specserve.audit.report import (
    DistributionCheck,
    EqualityCheck,
    Look,
    Origins,
    Report,
    Served,
    Status,
    Subject,
    judge,
)
from specserve.commands.audit_report import print_report

DRAFTED = Origins(num_tokens=100, num_accepted=40, num_verified=90)
PLAIN = Origins(num_tokens=100, num_accepted=0, num_verified=0)


def distribution_check(again: float | None = None, origins: Origins = DRAFTED) -> DistributionCheck:
    return DistributionCheck(
        method="rejection",
        subject=Subject.TOKENS,
        sampling="whole",
        prompt="Once",
        origins=origins,
        screening=Look(num_samples=40_000, num_cells=27, p_value=0.5 if again is None else 1e-4),
        repetition=None
        if again is None
        else Look(num_samples=160_000, num_cells=27, p_value=again),
    )


def equality(num_different: int = 0, *, promised: bool = True, origins: Origins = DRAFTED):
    return EqualityCheck(
        method="rejection",
        num_requests=10,
        num_tokens=100,
        origins=origins,
        num_different=num_different,
        first_difference="request 3" if num_different else "",
        promised=promised,
    )


def report(*checks) -> Report:
    served = Served(
        model="m",
        deterministic=True,
        speculation="sync",
        drafter="d",
        verification="rejection",
        gamma=4,
    )
    return Report(served=served, reference="off", checks=list(checks))


def verdict(*checks) -> Status:
    return report(*checks).verdict


def statuses(*again: float | None) -> list[Status]:
    return [check.status for check in judge([distribution_check(value) for value in again])]


def test_a_suspect_fails_by_its_second_look_alone():
    assert statuses(None, 0.2, 1e-9) == [Status.PASSED, Status.PASSED, Status.FAILED]


def test_the_second_look_is_corrected_for_all_tests_not_only_suspects():
    assert statuses(9e-7) == [Status.FAILED]
    assert statuses(9e-7, *[None] * 9) == [Status.PASSED] * 10
    assert statuses(9e-8, *[None] * 9)[0] is Status.FAILED
    # Holm: the second smallest is held against one test fewer.
    assert statuses(4e-7, 9e-7) == [Status.FAILED, Status.FAILED]
    assert statuses(6e-7, 9e-7) == [Status.PASSED, Status.PASSED]


def test_answers_without_a_verified_draft_say_nothing():
    (check,) = judge([distribution_check(origins=PLAIN)])
    assert check.status is Status.NOT_EXERCISED
    assert equality(origins=PLAIN).status is Status.NOT_EXERCISED
    assert verdict(equality(), check) is Status.NOT_EXERCISED


def test_the_verdict_is_the_worst_status():
    passed = judge([distribution_check()])
    assert verdict(equality(), *passed) is Status.PASSED
    assert verdict(equality(1), *passed) is Status.FAILED
    assert verdict(equality(1, promised=False), *passed) is Status.PASSED
    assert verdict(equality(), *judge([distribution_check(1e-9)])) is Status.FAILED
    assert verdict(equality(1), *judge([distribution_check(origins=PLAIN)])) is Status.FAILED


def place_check(num_tokens: int) -> DistributionCheck:
    look = Look(num_samples=num_tokens, num_cells=8, p_value=0.5)
    subject = Subject.PLACES_FROM_5
    return msgspec.structs.replace(distribution_check(), subject=subject, screening=look)


def test_places_that_no_draft_got_to_are_named_and_leave_the_verdict(capsys):
    checks = judge([distribution_check(), place_check(39), place_check(40)])
    assert [check.status for check in checks] == ["passed", "not exercised", "passed"]
    assert verdict(*checks) is Status.PASSED
    print_report(report(*checks))
    out = " ".join(capsys.readouterr().out.split())
    named = "next to no drafts got to (rejection, whole, places 5+): --min-survival 0 "
    assert named in out


def test_power_grows_with_distance_and_reach_is_where_it_is_likely():
    check = distribution_check()
    assert check.power(8) > 0.98
    assert check.power(8, 0.01) < 0.2
    assert 0.015 < check.reach(8) < 0.02
    assert check.power(8, check.reach(8)) >= 0.9


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        (
            judge([distribution_check()]),
            "verdict: passed; a distribution that is less than 0.017 off may pass, too",
        ),
        ([equality()], "verdict: passed\n"),
        (judge([distribution_check(1e-9)]), "verdict: failed\n"),
        (
            [equality(origins=PLAIN)],
            "verdict: not exercised; drafts decided too little: --min-",
        ),
    ],
)
def test_a_verdict_says_what_would_have_passed_too_or_would_say_more(capsys, checks, expected):
    print_report(report(*checks))
    assert expected in capsys.readouterr().out
