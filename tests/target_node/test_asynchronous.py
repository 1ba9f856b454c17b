"""The asynchronous source in the real loop: who is told what, what is looked up, what is freed."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specserve.decoding.verification.rule import VerificationRule
from specserve.slot_scores import SlotScores
from specserve.types import Abort, Speculation
from specserve.wire.draft_control import Context
from target_node.feature_cache import FeatureCache
from target_node.local_drafts import LocalDrafts
from target_node.miss_policy import Miss
from target_node.reporting import MAX_INLINE
from target_node.speculation import NoSpeculation
from target_node.tolerance import MAX_FAILURES
from tests.exactness.speculative import MAX_LEN, Models, make_models, requests
from tests.target_node.in_process import request
from tests.target_node.in_process_pair import InProcessPair
from tests.target_node.scripted_drafts import Drafting

QUICK = Drafting(pace=(12,))  # everything is prepared in time
PROMPT = [5, 9, 3, 7, 5, 9, 3]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


def pair_of(models, name="dspark vanilla", drafting=QUICK, **options) -> InProcessPair:
    options = {"miss": Miss.SKIP, "max_model_len": MAX_LEN} | options
    return InProcessPair(models.model(), lambda: models.drafter(name), drafting, **options)


def reports_of(pair: InProcessPair) -> list:
    """All rows that will have been reported, one by one."""
    rows = []
    for peer in pair.links._peers:
        send = peer.end.send

        def record(report, send=send):
            rows.extend(report.rows)
            return send(report)

        peer.end.send = record
    return rows


def answer(pair: InProcessPair, **fields) -> list[int]:
    fields = {"temperature": 1.0, "max_tokens": 20, "ignore_eos": True} | fields
    name = f"r{len(pair.ends)}"
    pair.submit(request(name, fields.pop("prompt", PROMPT), **fields))
    pair.run_until_idle()
    return pair.tokens[name, 0]


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
        assert len(draft.node.presolve.cache) == 0
        assert pair.pool.num_free == pair.pool.num_blocks


def test_a_report_is_the_anchor_what_came_before_it_and_what_is_verified_now(models):
    with pair_of(models) as pair:
        rows = reports_of(pair)
        tokens = PROMPT + answer(pair)
    known: dict[int, int] = {}
    for row in rows:
        end = row.start + len(row.token_ids)
        assert row.token_ids.tolist() == tokens[row.start : end]
        assert row.start <= known.get(row.stream, 0)
        assert len(row.features) == len(row.token_ids) - 1
        assert (row.speculation_id > 0) or not len(row.block)
        known[row.stream] = end - 1
    assert any(len(row.block) for row in rows)
    assert [row.round for row in rows] == sorted({row.round for row in rows})


def test_what_comes_after_all_requests_have_ended_is_read_before_the_next_one(models):
    with pair_of(models) as pair:
        (peer,), (draft,) = pair.links._peers, pair.drafts
        pushes, receive = [], peer.end.receive
        peer.end.receive = lambda: pushes.extend(found := receive()) or found
        answer(pair)
        pair.turn()
        draft.node._link.send(pushes[-1])
        _, before = pair.links.num_bytes
        pair.turn(2)
        assert pair.links.num_bytes[1] > before


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


def test_a_request_without_drafts_is_not_spoken_of(models):
    with pair_of(models) as pair:
        rows = reports_of(pair)
        pair.submit(request("r0", PROMPT, request_max_verify_len=0, max_tokens=9))
        pair.run_until_idle()
        assert rows == []
        assert len(pair.drafts[0].node.streams) == 0


def test_a_long_prompt_is_told_in_pieces_before_it_is_reported(models):
    prompt = [1 + (7 * i) % 60 for i in range(MAX_INLINE + 12)]
    with pair_of(models, max_batch_tokens=20) as pair:
        rows = reports_of(pair)
        answer(pair, prompt=prompt, max_tokens=12)
        assert max(len(row.token_ids) for row in rows) <= MAX_INLINE + 1
        assert pair.hit_rate > 0


def test_who_follows_says_whether_reports_alone_would_have_done(models):
    prompt = [1 + (7 * i) % 60 for i in range(MAX_INLINE + 12)]
    with pair_of(models) as pair:
        asynchronous, pair.node.speculation = pair.node.speculation, NoSpeculation()
        pair.node.speculation.tend = asynchronous.tend
        pair.submit(request("r0", prompt, max_tokens=40, ignore_eos=True))
        pair.turn(4)
        (sequence,) = pair.scheduler.running
        rows = [SimpleNamespace(sequence=sequence)]
        assert sequence.is_decoding
        assert [asynchronous.follow(rows) for _ in range(3)] == [False, True, True]
        pair.drafts[0].die()
        pair.turn(2)  # its successor has heard of nothing
        assert [asynchronous.follow(rows) for _ in range(2)] == [False, True]
        pair.drafts[0].die(turns_dead=9)
        pair.turn(2)
        assert asynchronous.follow(rows)  # there is nobody to tell


def test_rows_that_no_frame_has_room_for_together_travel_apart(models, monkeypatch):
    monkeypatch.setattr("target_node.reporting.MAX_FRAME_BYTES", 2500)
    with pair_of(models) as pair:
        frames, (peer,) = [], pair.links._peers
        send = peer.end.send
        peer.end.send = lambda report: frames.append(len(report.rows)) or send(report)
        for index in range(5):
            pair.submit(request(f"{index}", PROMPT, max_tokens=30, ignore_eos=True))
        pair.run_until_idle()
        assert set(frames) == {1, 2}
        assert len(pair.ends) == 5
        status = pair.asynchronous.status()
        assert status.num_hits > status.num_lookups / 10
        assert pair.asynchronous.num_drafts_attached == status.num_drafts_attached > 0


def test_rows_left_out_by_a_full_link_are_reported_first_next_time(models, monkeypatch):
    monkeypatch.setattr("target_node.reporting.MAX_FRAME_BYTES", 2500)
    with pair_of(models) as pair:
        reported, (peer,) = set(), pair.links._peers
        send, turns = peer.end.send, set()

        def send_one_a_turn(report):
            if len(pair.tokens) < 5 or pair.clock.perf_counter() in turns:
                return False
            turns.add(pair.clock.perf_counter())
            reported.update(row.stream for row in report.rows)
            return send(report)

        peer.end.send = send_one_a_turn
        for index in range(5):
            pair.submit(request(f"{index}", PROMPT, max_tokens=40, ignore_eos=True))
        pair.turn(10)
        assert len(reported) == 5


def test_a_confidence_that_is_none_costs_its_report_nothing():
    sequence = object()

    class Draft:
        def scores(self, sequence, num_slots):
            zeros = torch.zeros(num_slots, 4)
            return SlotScores(zeros.long(), zeros)

    local = LocalDrafts({Miss.DRAFT_HERE: Draft()}, torch.device("cpu"))
    local._kind_of[sequence] = Miss.DRAFT_HERE
    drafted = Speculation(token_ids=(1, 2), confidences=(float("nan"), 0.5))
    foresight = local.foresight(
        SimpleNamespace(sequence=sequence, speculation=drafted, verify_len=2)
    )
    assert foresight.confidences.tolist() == [0.0, 0.5]


def test_the_larger_features_are_the_fewer_tokens_travel_with_a_report(models, monkeypatch):
    token_bytes = 4 * models.target.spec.hidden_size
    monkeypatch.setattr("target_node.reporting.MAX_INLINE_BYTES", 12 * token_bytes)
    monkeypatch.setattr("target_node.reporting.MAX_CHUNK_BYTES", 20 * token_bytes)
    with pair_of(models) as pair:
        rows, told = reports_of(pair), []
        tell = pair.links.tell
        pair.links.tell = lambda peer, message: told.append(message) or tell(peer, message)
        answer(pair, prompt=[1 + (7 * i) % 60 for i in range(50)])
        assert max(len(row.token_ids) for row in rows) <= 12 + 1
        contexts = [message for message in told if isinstance(message, Context)]
        assert [len(message.token_ids) for message in contexts] == [20, 20]
        assert pair.asynchronous.status().num_hits


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
        draft.node.presolve.take(late)
        assert draft.node.streams.find(late.stream) is not None
        answer(pair)
        assert draft.node.streams.find(late.stream) is None


def test_waiting_for_a_block_is_bounded(models):
    slept: list[float] = []
    with pair_of(models, drafting=Drafting(pace=(1,)), miss=Miss.DRAFT_NOW) as pair:
        pair.turn(4)
        waits: list[bool] = []
        pair.policy.waited = lambda *, in_vain: waits.append(in_vain)
        step = pair.clock.on_sleep

        def dead() -> None:
            slept.append(pair.clock.now_s)

        pair.clock.on_sleep = dead
        pair.submit(request("r0", PROMPT, max_tokens=4, ignore_eos=True))
        pair.turn(2)
        assert 0 < slept[-1] - slept[0] <= pair.policy.max_wait_s
        assert waits[-1]  # in vain
        pair.clock.on_sleep = step
        pair.run_until_idle()
        assert pair.asynchronous.status().num_hits == 0
        assert pair.ends["r0"].stats.num_drafted_tokens > 0


def test_nobody_waits_beside_a_row_that_has_its_block(models):
    had_blocks: dict[bool, list[int]] = {True: [], False: []}  # by whether the rows waited
    with pair_of(models, drafting=Drafting(pace=(0, 12)), miss=Miss.DRAFT_NOW) as pair:
        after_miss, draft_now = pair.asynchronous._after_miss, pair.asynchronous._draft_now
        waited = []

        def seen(rows, missed, num_hits):
            waited.clear()
            found = after_miss(rows, missed, num_hits)
            if pair.asynchronous._miss is Miss.DRAFT_NOW:  # a draft may be silent, or gone
                had_blocks[bool(waited)].append(num_hits)
            return found

        pair.asynchronous._after_miss = seen
        pair.asynchronous._draft_now = lambda missed: waited.append(1) or draft_now(missed)
        for number in range(4):
            fields = {"seed": number, "temperature": 1.0, "ignore_eos": True}
            pair.submit(request(f"r{number}", PROMPT, **fields))
        pair.run_until_idle()
    assert len(had_blocks[True]) > 5
    assert set(had_blocks[True]) == {0}
    assert len(had_blocks[False]) > 5
    assert min(had_blocks[False]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("rule", list(VerificationRule))
def test_a_miss_is_drafted_for_beside_the_target_and_what_follows_is_foreseen(models, rule):
    options = {"miss": Miss.DRAFT_HERE, "default_rule": rule}
    with pair_of(models, "the target itself", **options) as pair:
        (draft,) = pair.drafts
        turns, pass_turn = itertools.count(), draft.pass_turn
        # It sleeps through one turn, whose outcome is a miss.
        draft.pass_turn = lambda: pass_turn() if next(turns) != 3 else None
        rows = reports_of(pair)
        tokens = answer(pair, max_tokens=40)
        drafted_here = [row for row in rows if row.foresight is not None]
        assert drafted_here
        for row in drafted_here:
            assert row.speculation_id == 0
            verify_len = len(row.block)
            slots = row.foresight.slot_ids
            assert verify_len <= len(slots) <= verify_len + 1
            text = PROMPT + tokens
            for number, follower in enumerate(text[row.position + 1 :][: len(slots)]):
                # The target's own law knows what it will say, unless it was cut for the ratio test.
                assert follower in slots[number] or rule is not VerificationRule.COUPLED
                if number < verify_len and follower != row.block[number]:
                    break
        # After a miss, what the target said of its block is enough.
        assert pair.hit_rate > (0.6 if rule is VerificationRule.COUPLED else 0.1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_follows_a_prompt_is_foreseen_while_the_target_computes_it(models, temperature):
    """By drafters that read token ids alone; the target itself, at that."""
    with pair_of(models, "the target itself", max_batch_tokens=16) as pair:
        rows = reports_of(pair)
        tokens = answer(pair, prompt=PROMPT * 5, max_tokens=8, temperature=temperature)
        status = pair.asynchronous.status()
    # The last of three chunks ends the prompt.
    opening = rows[0]
    assert (opening.position, opening.anchor_id) == (len(PROMPT * 5) - 1, PROMPT[-1])
    assert len(opening.block) == 0
    assert len(tokens) == 8
    assert status.num_hits == status.num_lookups > 0


@pytest.mark.parametrize(("max_tokens", "num_reports"), [(1, 0), (2, 0), (3, 2)])
def test_nobody_drafts_behind_a_prompt_for_the_last_token(models, max_tokens, num_reports):
    """It is the target's own."""
    with pair_of(models, "the target itself") as pair:
        rows = reports_of(pair)
        answer(pair, max_tokens=max_tokens)
    assert len(rows) == num_reports


def test_how_long_a_prompt_takes_is_not_told_from_rounds_without_one(models):
    with pair_of(models, "the target itself") as pair:
        answer(pair)
        leads: list[float] = []
        ages: list[float] = []
        end = pair.links._peers[0].end
        send = end.send

        def heard(report):
            leads.append(report.lead_s)
            ages.append(pair.clock.now_s - report.sent_s)
            return send(report)

        end.send = heard
        pair.submit(request("a", PROMPT, max_tokens=30, ignore_eos=True))
        pair.turn(4)
        at = len(leads)
        pair.submit(request("b", PROMPT, max_tokens=30, ignore_eos=True))
        pair.turn(2)
    assert leads[0] == 0
    assert min(leads[1:]) > 0  # somebody decodes
    assert set(ages) == {0.0}  # it says when it is sent
    assert len(leads) >= at + 2


def test_how_long_a_round_takes_is_told_from_the_tokens_that_it_computes(models, monkeypatch):
    reported: list[tuple[int, bool]] = []
    computed: list[tuple[int, bool]] = []
    with pair_of(models, "the target itself") as pair:
        lead, forward = pair.asynchronous._reporter.lead, pair.runner.forward
        tell = lead.reported

        def recorded(num_tokens, *, is_mixed):
            reported.append((num_tokens, is_mixed))
            tell(num_tokens, is_mixed=is_mixed)

        def run(batch):
            has_prompt = len(PROMPT) in batch.attention.num_tokens
            computed.append((len(batch.token_ids), has_prompt))
            return forward(batch)

        monkeypatch.setattr(lead, "reported", recorded)
        monkeypatch.setattr(pair.runner, "forward", run)
        pair.submit(request("a", PROMPT, max_tokens=12, ignore_eos=True))
        pair.turn(3)
        pair.submit(request("b", [token + 1 for token in PROMPT], max_tokens=12, ignore_eos=True))
        pair.turn(6)
    assert reported == computed
    assert {is_mixed for _, is_mixed in reported} == {True, False}
    assert len({num_tokens for num_tokens, _ in reported}) > 2


def test_a_drafter_that_reads_features_hears_of_a_prompt_when_it_is_computed(models):
    with pair_of(models, max_batch_tokens=16) as pair:
        rows = reports_of(pair)
        answer(pair, prompt=PROMPT * 5)
    assert rows[0].position == len(PROMPT * 5)
    assert all(len(row.features) == len(row.token_ids) - 1 for row in rows)


def test_a_preempted_row_is_foreseen_when_it_is_computed_again(models):
    with pair_of(models, "the target itself") as pair:
        rows = reports_of(pair)
        pair.submit(request("r", PROMPT, temperature=1.0, max_tokens=30, ignore_eos=True))
        pair.turn(4)
        (sequence,) = pair.scheduler.running
        pair.scheduler._preempt(sequence)
        at, known = len(rows), len(sequence.token_ids)
        pair.run_until_idle()
        after = rows[at:]
    assert (after[0].position, len(after[0].block)) == (known - 1, 0)
    assert after[1].round == after[0].round + 1
    assert len(after[1].block)


def test_a_drafter_here_that_breaks_costs_its_drafts_alone(models, caplog):
    with pair_of(models, miss=Miss.DRAFT_HERE, drafting=Drafting(num_drafts=0)) as pair:
        expected = answer(pair, seed=5)
        pair._here.speculate = None  # calling it raises
        assert answer(pair, seed=5) == expected
    assert caplog.text.count("drafting failed") == MAX_FAILURES


def test_no_draft_means_plain_decoding_without_waiting(models):
    with pair_of(models, drafting=Drafting(pace=(0,)), miss=Miss.DRAFT_NOW) as pair:
        pair.clock.on_sleep = lambda: pytest.fail("waited for nobody")
        answer(pair)
        assert pair.links.num_attached == 0
        assert pair.asynchronous.status().num_hits == 0


@pytest.mark.slow
@pytest.mark.parametrize("rule", [VerificationRule.COUPLED, VerificationRule.FORESEEABLE])
def test_features_that_are_not_finite_cost_drafts_and_nothing_else(models, monkeypatch, rule):
    with pair_of(models, miss=Miss.SKIP, default_rule=rule) as pair:
        expected = answer(pair, temperature=0.0)

    def spoil(self, spans):
        return torch.full((sum(end - start for _, start, end in spans), self.size), torch.nan)

    monkeypatch.setattr(FeatureCache, "read", spoil)
    with pair_of(models, miss=Miss.SKIP, default_rule=rule) as pair:
        assert answer(pair, temperature=0.0) == expected
        assert len(answer(pair)) == 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda push: push.law_probs * 2, id="more than one in all"),
        pytest.param(lambda push: push.law_probs * np.nan, id="not numbers"),
        pytest.param(lambda push: -push.law_probs, id="negative"),
    ],
)
def test_laws_that_are_none_cost_drafts_and_nothing_else(models, spoil):
    options = {"default_rule": VerificationRule.REJECTION}
    with pair_of(models, **options) as pair:
        receive = pair.links.receive
        pair.links.receive = lambda: [
            replace(push, law_probs=spoil(push).astype(np.float32)) for push in receive()
        ]
        assert len(answer(pair)) == 20
        assert pair.asynchronous.status().num_hits > 0
        assert pair.sampler.num_broken_laws > 0
        assert pair.ends["r0"].stats.num_accepted_tokens == 0


def test_a_block_without_a_law_is_a_miss_for_the_ratio_test(models):
    with pair_of(models, default_rule=VerificationRule.REJECTION) as pair:
        receive = pair.links.receive
        pair.links.receive = lambda: [
            replace(push, law_ids=push.law_ids[..., :0], law_probs=push.law_probs[..., :0])
            for push in receive()
        ]
        assert len(answer(pair)) == 20
        assert pair.asynchronous.status().num_hits == 0


@pytest.mark.slow
def test_the_same_script_gives_the_same_run(models):
    def run() -> tuple:
        drafting = Drafting(num_drafts=2, death=0.03, control_loss=0.05)
        with pair_of(models, drafting=drafting, miss=None) as pair:
            for each in requests(10, seed=8):
                pair.submit(each)
            pair.run_until_idle()
            return pair.asynchronous.status(), [draft.num_lives for draft in pair.drafts]

    assert run() == run()
