"""Counts and sizes as people write them."""

import pytest

from specserve.errors import InvalidField
from specserve.settings.sizes import format_bytes, format_count, parse_bytes, parse_count


@pytest.mark.parametrize(
    ("text", "count"), [("60M", 60_000_000), ("1.5b", 1_500_000_000), ("250k", 250_000), ("7", 7)]
)
def test_counts_are_powers_of_a_thousand(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize(
    ("text", "size"), [("512MiB", 512 << 20), ("2GB", 2 * 10**9), ("1g", 1 << 30), ("0.5 KiB", 512)]
)
def test_sizes_may_be_binary_or_decimal(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1M", "1e6", "60MM", "60 M B", "nan"])
def test_what_is_no_count_is_refused(text):
    with pytest.raises(InvalidField, match="ballast"):
        parse_count(text, "ballast")


@pytest.mark.parametrize("text", ["-1M", " -.5M"])
def test_a_negative_count_is_called_one(text):
    with pytest.raises(InvalidField, match=r"ballast: '.*' is negative; it must be a count"):
        parse_count(text, "ballast")


def test_sizes_are_printed_for_people():
    assert (format_bytes(512 << 20), format_bytes(12)) == ("512.0 MiB", "12 B")
    assert (format_count(61_234_567), format_count(999)) == ("61.2M", "999")
