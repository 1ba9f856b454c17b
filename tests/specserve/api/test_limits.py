"""What requests are held against, and where it comes from."""

import pytest

from specserve.api.call import limits_of
from tests.specserve.api.scripted_target import ready


@pytest.mark.parametrize(("max_model_len", "fills_pool"), [(128, True), (127, False)])
def test_a_context_as_large_as_the_pool_is_the_pools(max_model_len, fills_pool):
    limits = limits_of(ready(400, max_model_len))
    assert (limits.vocab_size, limits.max_samples, limits.max_logprobs) == (400, 64, 20)
    assert (limits.max_model_len, limits.fills_pool) == (max_model_len, fills_pool)
