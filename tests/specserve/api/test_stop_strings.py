"""The matcher against a plain search over the whole text."""

import random

from specserve.api.stop_strings import StopStringMatcher


def first_stop(text, stops):
    """(text before it, stop string) by definition: completes first, then longest."""
    found = [(end, -len(s), s) for s in stops for end in range(len(text) + 1)
             if end >= len(s) and text[end - len(s) : end] == s]  # fmt: skip
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end - len(stop)], stop


def run(text, stops, random_source):
    matcher, shown, position = StopStringMatcher(tuple(stops)), "", 0
    while position < len(text):
        size = random_source.randint(1, 5)
        scan = matcher.push(text[position : position + size])
        shown, position = shown + scan.text, position + size
        if scan.stop_string is not None:
            return shown, scan.stop_string
    return shown + matcher.flush(), None


def test_matches_equal_a_plain_search_however_the_text_is_cut():
    source = random.Random(1)
    for _ in range(3000):
        stops = ["".join(source.choices("ab", k=source.randint(1, 5))) for _ in range(3)]
        text = "".join(source.choices("abc", k=source.randint(0, 30)))
        assert run(text, stops, source) == first_stop(text, stops)


def test_only_what_could_begin_a_stop_string_is_held_back():
    matcher = StopStringMatcher(("STOP",))
    assert matcher.push("go ST").text == "go "
    assert matcher.push("A").text == "STA"
    assert matcher.push("STO").text == ""
    assert matcher.flush() == "STO"
