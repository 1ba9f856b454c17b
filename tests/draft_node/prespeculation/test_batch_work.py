"""A draft batch of the rejection family is the same work, whichever outcomes it is for.

How many of the pending tokens an outcome accepts is how long its gap is. A draft batch that took
longer behind a longer gap would be late by what was accepted. Counted is what real drafters
compute.
"""

import pytest

from specserve.backends.cpu.forward import CompiledForward
from specserve.drafters.backbone import Backbone
from specserve.drafters.eagle3 import Eagle3Decoder
from specserve.transport.link.push_frames import encode_push
from tests.draft_node.prespeculation.rounds import END, Rounds, pending_of
from tests.specserve.drafters.checkpoints import DFLASH, DSPARK, EAGLE3, make_drafter

VERIFY_LEN = 3  # of the pending round: gaps are one to four tokens long
CONFIGS = {"dspark": DSPARK, "dflash": DFLASH, "eagle3": EAGLE3}


@pytest.fixture
def passes(monkeypatch):
    """How many tokens each pass over a drafter's layers computes."""
    found = []

    def count(owner, name):
        real = getattr(owner, name)

        def counted(self, token_ids, *others, **fields):
            found.append(len(token_ids))
            return real(self, token_ids, *others, **fields)

        monkeypatch.setattr(owner, name, counted)

    for owner, name in ((CompiledForward, "run"), (Backbone, "hidden"), (Eagle3Decoder, "step")):
        count(owner, name)
    return found


def draft_batches_of(drafter, passes, method, size):
    """Of one round: the gaps of each batch, the tokens of its passes, and what is pushed of it."""
    rounds, found = Rounds(drafter, draft_batch=size, fan_out=12), []
    pending_of(rounds, VERIFY_LEN, method=method)
    while True:
        passes.clear()
        before = len(rounds.pushes)
        if not rounds.prespeculation.step():
            return found
        (push,) = rounds.pushes[before:]
        gaps = tuple(key.position - END for key in push.keys)
        found.append((gaps, tuple(passes), len(b"".join(encode_push(push, 1, 0).parts))))


def assert_equal_work(draft_batches, size):
    gaps, work, num_bytes = zip(*draft_batches, strict=True)
    assert {len(each) for each in gaps} == {size}
    assert len({max(each) for each in gaps}) > 1  # else nothing could differ
    assert len(set(work)) == len(set(num_bytes)) == 1
    assert sum(work[0]) > 0


@pytest.mark.parametrize("method", ["rejection", "foreseeable"])
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_work_does_not_depend_on_what_outcomes_accept(target, tmp_path, passes, name, size, method):
    """Of drafters that are told the pending tokens with each block."""
    drafter = make_drafter(tmp_path / "draft", CONFIGS[name], target)
    drafter.holds_pending_tokens = False
    assert_equal_work(draft_batches_of(drafter, passes, method, size), size)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", ["dspark", "dflash"])
def test_nor_where_a_context_holds_what_is_pending(target, tmp_path, passes, name, size):
    drafter = make_drafter(tmp_path / "draft", CONFIGS[name], target)
    draft_batches = draft_batches_of(drafter, passes, "rejection", size)
    # Whatever the first one is for, it computes the pending tokens as well.
    assert sum(draft_batches[0][1]) == sum(draft_batches[1][1]) + 1 + VERIFY_LEN
    assert_equal_work(draft_batches[1:], size)


def test_shared_noise_costs_no_padding(target, tmp_path, passes):
    """What is late there costs no exactness: gaps are as long as they are."""
    drafter = make_drafter(tmp_path / "draft", EAGLE3, target)
    for gaps, work, _ in draft_batches_of(drafter, passes, "coupled", 1):
        assert sum(work) == max(gaps) + drafter.gamma
