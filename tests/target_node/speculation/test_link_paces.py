"""What drafts of draft processes take: as those said who are there now, and at their own pace."""

from collections.abc import Iterator

import pytest

from specserve.types import DraftTime
from tests.target_node.speculation.fake_drafts import Pair

TIMES = (DraftTime(1, 0.1, 0.02), DraftTime(16, 0.4, 0.08))


@pytest.fixture
def pair(tmp_path) -> Iterator[Pair]:
    made = Pair(tmp_path, num_drafts=1)
    yield made
    made.close()


def introduced(pair: Pair, times: tuple[DraftTime, ...], enter_s: float) -> None:
    """Whether or not somebody was there before."""
    (draft,) = pair.drafts
    before = draft.end.epoch
    draft.introduce(times=times, enter_s=enter_s)
    pair.until(lambda: draft.end.epoch != before)


def test_what_a_draft_process_measured_is_known_once_it_is_attached(pair):
    assert not pair.links.pace.is_known
    introduced(pair, TIMES, 0.05)
    assert pair.links.pace.is_known
    assert pair.links.pace.seconds(1, 5) == pytest.approx(0.2)
    assert pair.links.pace.seconds(16, 1) == pytest.approx(0.48)
    assert pair.links.pace.entering_s(1) == pytest.approx(0.05)
    assert pair.links.pace.go_by_token


def test_who_takes_its_place_is_believed_and_not_what_was_seen_of_the_one_before(pair):
    introduced(pair, TIMES, 0.05)
    for _ in range(20):
        pair.links.pace.observe(1, 5, 2.0)
        pair.links.pace.observe_entering(1, 3, 0.7)
    assert pair.links.pace.seconds(1, 5) == pytest.approx(2.0)
    introduced(pair, (DraftTime(1, 0.3, 0.0),), 0.01)
    assert pair.links.pace.seconds(1, 5) == pytest.approx(0.3)
    assert pair.links.pace.entering_s(1) == pytest.approx(0.01)
