"""Drafters as the command lines of the benches name them."""

import argparse

import pytest

from bench.drafter_choice import (
    DrafterChoice,
    add_drafter_options,
    parse_choice,
    read_choices,
    read_depths,
)
from specserve.errors import InvalidField
from specserve.settings.target_source import EMBEDDED_TARGET


def read(*words: str) -> list[DrafterChoice]:
    parser = argparse.ArgumentParser()
    add_drafter_options(parser)
    return read_choices(parser.parse_args(words), EMBEDDED_TARGET)


@pytest.mark.parametrize(
    ("word", "label", "drafter", "head"),
    [
        ("ngram", "ngram", "ngram", None),
        ("./runs/dspark-3", "dspark-3", "./runs/dspark-3", None),
        ("mine=./runs/dspark-3", "mine", "./runs/dspark-3", None),
        ("dels=dflash+./head", "dels", "dflash", "./head"),
        ("dflash+./head", "dflash+head", "dflash", "./head"),
    ],
)
def test_a_drafter_is_read_with_its_label_and_head(word, label, drafter, head):
    choice = parse_choice(word)
    assert (choice.label, choice.drafter, choice.local_head) == (label, drafter, head)


def test_a_local_head_adds_the_dflash_once_more():
    choices = read(
        "--drafter",
        "dflash=./a",
        "ngram",
        "--local-head",
        "./head",
        "--gamma",
        "5",
        "--num-kept",
        "9",
    )
    assert [choice.label for choice in choices] == ["dflash", "ngram", "dels"]
    assert choices[2].drafter == "./a"
    assert choices[2].local_head == "./head"
    assert {(choice.gamma, choice.num_kept) for choice in choices} == {(5, 9)}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--drafter", "ngram", "--local-head", "x"], "no drafter here is called dflash"),
        (["--drafter", "a/one", "b/one"], "two drafters are called one"),
        (["--drafter", "ngram", "--gamma", "0"], "--gamma"),
        (["--drafter", "ngram", "--num-kept", "0"], "--num-kept"),
        (["--drafter", "+head"], "is not"),
    ],
)
def test_a_senseless_choice_is_named(words, problem):
    with pytest.raises(InvalidField, match=problem):
        read(*words)


def test_what_is_no_drafter_fails_before_anything_is_loaded():
    with pytest.raises(InvalidField, match=r"speculation\.drafter"):
        parse_choice("nothing-like-this").located(EMBEDDED_TARGET)


def test_depths_are_numbers_in_order():
    def depths(*words: str) -> list[str]:
        arguments = argparse.Namespace(depth_drafters=words, gamma=7, num_kept=64)
        return [choice.label for choice in read_depths(arguments)]

    assert depths("10=./a", "2=./b") == ["2", "10"]
    with pytest.raises(InvalidField, match="no number of layers"):
        depths("deep=./a")
