"""Arms as the command line has them."""

import msgspec
import pytest

from bench.configurations.arms import ARM, FULL, PAPER_ARMS, check_methods, read_arm, read_arms
from bench.services.launch_flags import check_service
from bench.services.service import Arm
from specserve.errors import InvalidField, SpecserveError
from specserve.sampling.verification.method import VerificationMethod


def test_an_arm_is_a_name_and_flags_of_launch():
    word = "by hand: --speculation async --topology 1+1 --gamma 12 --set speculation.fan_out=4"
    arm = read_arm(word, ["--dtype", "float32"], "smollm2")
    assert (arm.name, arm.mode, arm.threads) == ("by hand", "async", 1)
    assert arm.has_draft_process
    assert arm.flags == (
        "--dtype", "float32", "--speculation", "async", "--topology", "1+1", "--gamma", "12",
        "--set", "speculation.fan_out=4", "--drafter", "smollm2",
    )  # fmt: skip
    assert arm.verification is VerificationMethod.FORESEEABLE


def test_what_an_arm_says_of_cores_methods_and_drafters_counts():
    word = "both: --speculation sync --threads 2 --verification rejection --drafter ngram"
    arm = read_arm(word, [], "smollm2")
    assert (arm.threads, arm.verification) == (2, VerificationMethod.REJECTION)
    assert not arm.has_draft_process
    assert "smollm2" not in arm.flags
    assert read_arm("sync: --set speculation.mode=sync", [], "lm").mode == "sync"


def test_plain_decoding_always_takes_part_and_comes_first():
    arms = read_arms(["sync: --speculation sync", "slow: --speculation off"], [], "lm")
    assert [arm.name for arm in arms] == ["slow", "sync"]
    assert "--drafter" not in arms[0].flags
    added = read_arms(["sync: --speculation sync"], ["--dtype", "float32"], "lm")
    assert [arm.name for arm in added] == ["plain", "sync"]
    assert Arm(service=added[0]).is_reference
    both = read_arms(["two: --speculation off --threads 2"], [], "lm")
    assert [arm.name for arm in both] == ["plain", "two"]


def test_the_papers_arms_are_sound():
    arms = read_arms(PAPER_ARMS, [], "lm")
    assert [arm.mode for arm in arms] == ["off", "sync", "sync", "sync", *["async"] * 3]
    assert [arm.threads for arm in arms] == [1, 1, 1, 2, 1, 1, 1]
    for arm in arms:
        check_service(ARM, arm, ["--target", "tiny", "--oversubscribe"])


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("--speculation sync", "is not NAME: FLAGS"),
        ("sync:", "is not NAME: FLAGS"),
        (": --speculation sync", "is not NAME: FLAGS"),
        ("sync: --speculation 'sync", "No closing quotation"),
        ("sync: --specula sync", "unrecognized arguments"),
        ("sync: --gamma many", "speculation.gamma"),
        ("sync: --speculation sync --target tiny", "model.target"),
        ("sync: --speculation sync --ballast 1B", "model.ballast"),
        ("sync: --speculation sync --verification guess", "speculation.verification: 'guess'"),
    ],
)
def test_what_is_no_arm_is_refused_in_one_line(word, problem):
    with pytest.raises(InvalidField) as error:
        read_arm(word, [], "lm")
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_two_arms_of_one_name_are_refused():
    with pytest.raises(InvalidField, match="two arms are called 'sync'"):
        read_arms(["sync: --speculation sync", "sync: --speculation sync --gamma 2"], [], "lm")


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("a: --speculation async", "a.*draft process"),
        ("a: --speculation fast", "'a'.*speculation.mode"),
        ("a: --speculation sync --drafter nobody", "'a'.*speculation.drafter"),
    ],
)
def test_what_launch_would_refuse_is_refused_before_anything_is_measured(word, problem):
    with pytest.raises(SpecserveError, match=problem):
        check_service(ARM, read_arm(word, [], "lm"), ["--target", "tiny"])


def test_who_would_be_measured_by_no_method_is_refused():
    asked = msgspec.structs.replace(FULL, methods=(VerificationMethod.REJECTION,))
    sync = read_arm("C 1: --speculation sync", [], "lm")
    with pytest.raises(InvalidField, match="rejection: 'C 1' verifies by foreseeable; add --flags"):
        check_methods([sync], asked)
    check_methods([read_arm("C 1: --speculation sync --verification rejection", [], "lm")], asked)
    check_methods([sync], msgspec.structs.replace(asked, temperatures=(0.0,)))
