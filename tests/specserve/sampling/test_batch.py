"""Truncations of some rows, as those of all rows."""

import pytest

from specserve.sampling.batch import SamplingBatch, Truncation
from specserve.sampling.state import SamplingState
from specserve.types import SamplingParams


def truncation_of(*params: SamplingParams) -> Truncation:
    states = [SamplingState(each, seed=0, prompt_token_ids=(1,)) for each in params]
    truncation = SamplingBatch.build(states).truncation
    assert truncation is not None
    return truncation


@pytest.mark.parametrize("place", [0, 1])
def test_rows_that_are_added_have_no_top_k(place):
    params = [SamplingParams(), SamplingParams()]
    params[place] = SamplingParams(top_k=5, top_p=0.5, min_p=0.1)
    own = truncation_of(*params)
    assert own.all_top_k
    spread = own.spread(2)
    assert not spread.all_top_k
    assert spread.places.tolist() == [0, 1]
    for column, off in (("top_k", 0), ("top_p", 1), ("min_p", 0)):
        values = getattr(spread, column).tolist()
        assert values == [off if row != place else getattr(params[row], column) for row in (0, 1)]


def test_where_all_rows_truncate_none_is_added():
    own = truncation_of(SamplingParams(top_k=5), SamplingParams(top_k=7))
    assert own.spread(2) is own
    assert own.all_top_k
