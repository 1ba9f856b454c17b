"""The asynchronous source in the real loop: who is told what, what is looked up, what is freed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from specserve.sampling.verification.method import VerificationMethod
from specserve.types import Abort, Load
from target_node.speculation.feature_cache import FeatureCache
from target_node.speculation.miss_policy import Miss
from tests.exactness.speculative import Models, make_models, requests
from tests.target_node.in_process import request
from tests.target_node.scripted_drafts import Drafting
from tests.target_node.speculation.asynchronous_pairs import (
    PROMPT,
    QUICK,
    answer,
    pair_of,
    reports_of,
)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


@pytest.mark.slow
def test_nothing_is_left_of_requests_that_ended_or_were_aborted(models):
    with pair_of(models) as pair:
        for each in requests(12, seed=3):
            pair.submit(each)
        pair.turn(4)
        pair.control.inbox.append(Abort("r3"))
        pair.run_until_idle()
        pair.turn(2)
        (draft,) = pair.drafts
        assert len(pair.asynchronous._streams) == 0
        assert len(draft.node.streams) == 0
        assert len(draft.node.prespeculation.cache) == 0
        assert pair.pool.num_free == pair.pool.num_blocks


@pytest.mark.slow
def test_what_comes_after_all_requests_have_ended_is_read_before_the_next_one(models):
    with pair_of(models) as pair:
        (peer,), (draft,) = pair.links._peers, pair.drafts
        pushes, receive = [], peer.end.receive
        peer.end.receive = lambda: pushes.extend(found := receive()) or found
        answer(pair)
        pair.turn()
        draft.node._link.send(pushes[-1])
        (before,) = pair.links.reports
        pair.turn(2)
        assert pair.links.reports[0].bytes_received > before.bytes_received


def test_the_last_token_of_a_block_is_never_verified(models):
    with pair_of(models, "the target itself") as pair:
        rows = reports_of(pair)
        answer(pair, max_tokens=40)
        gamma = pair.asynchronous.gamma
    assert max(len(row.block) for row in rows) == gamma - 1


def test_a_draft_that_guesses_right_saves_rounds(models):
    with pair_of(models, "the target itself") as pair:
        answer(pair, max_tokens=40)
        stats = pair.ends["r0"].stats
        # The first two rounds know no block yet; then four tokens a round.
        assert stats.num_rounds < 20
        assert pair.hit_rate > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dspark vanilla", "language model"])
def test_a_new_draft_is_told_everything_and_is_of_use_again(models, name):
    with pair_of(models, name) as pair:
        pair.submit(request("r0", PROMPT, max_tokens=60, ignore_eos=True))
        pair.turn(8)
        before = pair.asynchronous.status().num_hits
        (draft,) = pair.drafts
        draft.die()
        pair.run_until_idle()
        assert draft.num_lives == 2
        assert pair.asynchronous.status().num_hits > before > 0


@pytest.mark.slow
def test_the_requests_of_a_dead_draft_are_taken_over(models):
    with pair_of(models, drafting=replace(QUICK, num_drafts=2)) as pair:
        names = [f"{index}: a request" for index in range(6)]
        for name in names:
            pair.submit(request(name, PROMPT, max_tokens=60, ignore_eos=True))
        pair.turn(6)
        owners = {name: pair.links.peer_of(name).index for name in names}
        assert set(owners.values()) == {0, 1}
        pair.drafts[0].die(turns_dead=10_000)
        pair.turn(12)
        assert pair.links.num_attached == 1
        # Six live streams, all of them with the one that is left.
        assert len(pair.drafts[1].node.streams) == 6
        pair.run_until_idle()
        assert len(pair.ends) == 6


@pytest.mark.slow
def test_a_draft_forgets_what_it_lends_back(models):
    """Requests of a dead draft return to it: the other one must not keep their streams for ever."""
    with pair_of(models, drafting=replace(QUICK, num_drafts=2)) as pair:
        for index in range(6):
            text = f"{index}: a request"
            pair.submit(request(text, PROMPT, max_tokens=60, ignore_eos=True))
        pair.turn(4)
        pair.drafts[0].die(turns_dead=10)
        pair.turn(10)
        assert len(pair.drafts[1].node.streams) == 6
        pair.turn(6)
        assert pair.links.num_attached == 2
        known = [{stream.number for stream in draft.node.streams} for draft in pair.drafts]
        assert all(known)
        assert not known[0] & known[1]
        assert len(known[0] | known[1]) == 6


def test_an_ended_stream_that_comes_back_to_life_is_put_to_rest(models):
    """Its last report may arrive after the word that it has ended."""
    with pair_of(models) as pair:
        reports, (draft,) = reports_of(pair), pair.drafts
        answer(pair)
        late = reports[-1]
        draft.step()
        assert draft.node.streams.find(late.stream) is None
        draft.node.prespeculation.take(late)
        assert draft.node.streams.find(late.stream) is not None
        answer(pair)
        assert draft.node.streams.find(late.stream) is None


@pytest.mark.slow
@pytest.mark.parametrize("method", [VerificationMethod.COUPLED, VerificationMethod.FORESEEABLE])
def test_features_that_are_not_finite_cost_drafts_and_nothing_else(models, monkeypatch, method):
    with pair_of(models, miss=Miss.SKIP, default_method=method) as pair:
        expected = answer(pair, temperature=0.0)

    def spoil(self, spans):
        return torch.full((sum(end - start for _, start, end in spans), self.size), torch.nan)

    monkeypatch.setattr(FeatureCache, "read", spoil)
    with pair_of(models, miss=Miss.SKIP, default_method=method) as pair:
        assert answer(pair, temperature=0.0) == expected
        assert len(answer(pair)) == 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda push: push.kept_probs * 2, id="more than one in all"),
        pytest.param(lambda push: push.kept_probs * np.nan, id="not numbers"),
        pytest.param(lambda push: -push.kept_probs, id="negative"),
    ],
)
def test_distributions_that_are_none_cost_drafts_and_nothing_else(models, spoil):
    options = {"default_method": VerificationMethod.REJECTION}
    with pair_of(models, **options) as pair:
        receive = pair.links.receive
        pair.links.receive = lambda: [
            (epoch, replace(push, kept_probs=spoil(push).astype(np.float32)))
            for epoch, push in receive()
        ]
        assert len(answer(pair)) == 20
        assert pair.asynchronous.status().num_hits > 0
        assert pair.sampler.num_broken_laws > 0
        loads = [each for each in pair.control.sent if isinstance(each, Load)]
        assert loads[-1].num_broken_laws == pair.sampler.num_broken_laws
        assert pair.ends["r0"].stats.num_accepted_tokens == 0


@pytest.mark.slow
def test_the_same_script_gives_the_same_run(models):
    def run() -> tuple:
        drafting = Drafting(num_drafts=2, death=0.03, control_loss=0.05)
        with pair_of(models, drafting=drafting, miss=None) as pair:
            for each in requests(10, seed=8):
                pair.submit(each)
            pair.run_until_idle()
            status = pair.asynchronous.status()
            assert status.draft_batch_s > 0
            return replace(status, draft_batch_s=0.0), [draft.num_lives for draft in pair.drafts]

    assert run() == run()
