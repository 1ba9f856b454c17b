"""What drafts are told of rounds: in the real loop, under a scripted clock."""

from types import SimpleNamespace

import pytest
import torch

from draft_node.stream_sampling import StreamSampling
from specserve.drafters.slot_scores import SlotScores
from specserve.sampling.state import SamplingState
from specserve.transport.control.draft_control import Context, SamplingParameters
from specserve.types import Speculation
from target_node.speculation.local_drafts import LocalDrafts
from target_node.speculation.miss_policy import Miss
from target_node.speculation.reporting import MAX_INLINE
from target_node.speculation.source import NoSpeculation
from tests.exactness.speculative import Models, make_models
from tests.target_node.in_process import request
from tests.target_node.scripted_drafts import Drafting
from tests.target_node.speculation.asynchronous_pairs import PROMPT, answer, pair_of, reports_of


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return make_models(tmp_path_factory.mktemp("models"))


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
        pair.node.speculation.poll = asynchronous.poll
        pair.submit(request("r0", prompt, max_tokens=40, ignore_eos=True))
        pair.turn(4)
        (sequence,) = pair.scheduler.running
        rows = [SimpleNamespace(sequence=sequence)]
        assert sequence.is_decoding
        assert [asynchronous.warm_up(rows) for _ in range(3)] == [False, True, True]
        pair.drafts[0].die()
        pair.turn(2)  # its successor has heard of nothing
        assert [asynchronous.warm_up(rows) for _ in range(2)] == [False, True]
        pair.drafts[0].die(turns_dead=9)
        pair.turn(2)
        assert asynchronous.warm_up(rows)  # there is nobody to tell


def test_rows_that_no_frame_has_room_for_together_travel_apart(models, monkeypatch):
    monkeypatch.setattr("target_node.speculation.reporting.MAX_FRAME_BYTES", 2500)
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
    monkeypatch.setattr("target_node.speculation.reporting.MAX_FRAME_BYTES", 2500)
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

    local = LocalDrafts({Miss.LOCAL_DRAFT: Draft()}, torch.device("cpu"))
    local._kind_of[sequence] = Miss.LOCAL_DRAFT
    drafted = Speculation(token_ids=(1, 2), confidences=(float("nan"), 0.5))
    draft_top_k = local.draft_top_k(
        SimpleNamespace(sequence=sequence, speculation=drafted, verify_len=2), on_device=False
    )
    assert draft_top_k.confidences.tolist() == [0.0, 0.5]


def test_the_larger_features_are_the_fewer_tokens_travel_with_a_report(models, monkeypatch):
    token_bytes = 4 * models.target.spec.hidden_size
    monkeypatch.setattr("target_node.speculation.reporting.MAX_INLINE_BYTES", 12 * token_bytes)
    monkeypatch.setattr("target_node.speculation.reporting.MAX_CHUNK_BYTES", 20 * token_bytes)
    with pair_of(models) as pair:
        rows, told = reports_of(pair), []
        tell = pair.links.tell
        pair.links.tell = lambda peer, message: told.append(message) or tell(peer, message)
        answer(pair, prompt=[1 + (7 * i) % 60 for i in range(50)])
        assert max(len(row.token_ids) for row in rows) <= 12 + 1
        contexts = [message for message in told if isinstance(message, Context)]
        assert [len(message.token_ids) for message in contexts] == [20, 20]
        assert pair.asynchronous.status().num_hits


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
        latencies: list[float] = []
        ages: list[float] = []
        end = pair.links._peers[0].end
        send = end.send

        def heard(report):
            latencies.append(report.round_latency_s)
            ages.append(pair.clock.now_s - report.sent_s)
            return send(report)

        end.send = heard
        pair.submit(request("a", PROMPT, max_tokens=30, ignore_eos=True))
        pair.turn(4)
        at = len(latencies)
        pair.submit(request("b", PROMPT, max_tokens=30, ignore_eos=True))
        pair.turn(2)
    assert latencies[0] == 0
    assert min(latencies[1:]) > 0  # somebody decodes
    assert set(ages) == {0.0}  # it says when it is sent
    assert len(latencies) >= at + 2


def test_how_long_a_round_takes_is_told_from_the_tokens_that_it_computes(models, monkeypatch):
    reported: list[tuple[int, bool]] = []
    computed: list[tuple[int, bool]] = []
    with pair_of(models, "the target itself") as pair:
        round_latency, forward = pair.asynchronous._reports.round_latency, pair.runner.forward
        tell = round_latency.reported

        def recorded(num_tokens, *, is_mixed):
            reported.append((num_tokens, is_mixed))
            tell(num_tokens, is_mixed=is_mixed)

        def run(batch):
            has_prompt = len(PROMPT) in batch.attention.num_tokens
            computed.append((len(batch.token_ids), has_prompt))
            return forward(batch)

        monkeypatch.setattr(round_latency, "reported", recorded)
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


SHAPING = [
    {"top_k": 2},
    {"top_p": 0.4},
    {"repetition_penalty": 3.0, "frequency_penalty": 2.0},
    {"logit_bias": {11: 30.0, 12: 30.0, 13: 30.0}, "presence_penalty": 1.5},
    {"min_tokens": 15, "stop_token_ids": tuple(range(8, 40)), "ignore_eos": False},
]


def accepted_share(models, *, is_told: bool, deaths: int = 0, **fields) -> float:
    with pair_of(models, "the target itself", miss=Miss.SKIP) as pair:
        if not is_told:
            tell = pair.links.tell
            lost = lambda message: isinstance(message, SamplingParameters)  # noqa: E731
            pair.links.tell = lambda peer, message: lost(message) or tell(peer, message)
        pair.submit(request("r0", PROMPT, **{"max_tokens": 40, "ignore_eos": True} | fields))
        for _ in range(deaths):
            pair.turn(4)
            pair.drafts[0].die()
        pair.run_until_idle()
        stats = pair.ends["r0"].stats
        assert stats.num_drafted_tokens > 10
        return stats.num_accepted_tokens / stats.num_drafted_tokens


@pytest.mark.parametrize("fields", SHAPING, ids=lambda fields: next(iter(fields)))
def test_drafts_know_a_requests_parameters_and_so_what_the_target_will_say(models, fields):
    """By the target itself: all that it drafts then stands."""
    fields = {"temperature": 1.3, "seed": 4, "request_seeded_by_user": True} | fields
    assert accepted_share(models, is_told=True, **fields) == 1.0
    assert accepted_share(models, is_told=False, **fields) < 0.9


def test_who_takes_a_drafts_place_is_told_of_fields_again(models):
    fields = {"temperature": 1.3, "seed": 4, "request_seeded_by_user": True, "top_k": 2}
    assert accepted_share(models, is_told=True, deaths=2, **fields) == 1.0


def test_requests_without_fields_cost_no_message(models):
    with pair_of(models) as pair:
        told, tell = [], pair.links.tell
        pair.links.tell = lambda peer, message: told.append(message) or tell(peer, message)
        answer(pair, temperature=0.0, top_p=0.5)  # which cuts nothing at temperature 0
        answer(pair)
        assert not [each for each in told if isinstance(each, SamplingParameters)]
        answer(pair, top_p=0.5)
        assert len([each for each in told if isinstance(each, SamplingParameters)]) == 1


def test_a_draft_that_asks_for_what_it_lost_is_told_of_fields_too(models):
    fields = {"temperature": 1.3, "top_k": 2, "max_tokens": 40, "ignore_eos": True}
    with pair_of(models, "the target itself") as pair:
        told, tell = [], pair.links.tell
        pair.links.tell = lambda peer, message: told.append(message) or tell(peer, message)
        pair.submit(request("r0", PROMPT, **fields))
        pair.turn(5)
        streams = pair.drafts[0].node.streams
        (number,) = [stream.number for stream in streams]
        streams.free([number])  # as one that was not heard of for long
        pair.run_until_idle()
        assert len([each for each in told if isinstance(each, SamplingParameters)]) == 2


@pytest.mark.parametrize("name", ["the target itself", "dspark vanilla", "ngram"])
def test_a_branchs_state_is_the_targets_behind_the_same_tokens(models, name, monkeypatch):
    """Whatever a draft was told by which way, and whatever is in flight."""
    fields = {"presence_penalty": 0.7, "repetition_penalty": 1.3, "min_tokens": 9, "top_p": 0.9}
    behind, num_asked = StreamSampling.behind, 0

    def checked(self, token_ids, length, more):
        nonlocal num_asked
        num_asked += 1
        found, text = behind(self, token_ids, length, more), [*token_ids[:length], *more]
        truth = SamplingState(
            self._given.sampling,
            seed=0,
            prompt_token_ids=PROMPT,
            end_token_ids=self._given.end_token_ids,
        )
        for token_id in text[len(PROMPT) :]:
            truth.append(token_id)
        assert found.forbidden_ids == truth.forbidden_ids
        seen = zip(found.penalties.ids, found.penalties.counts, strict=True)
        assert dict(seen) == dict(zip(truth.penalties.ids, truth.penalties.counts, strict=True))
        return found

    monkeypatch.setattr(StreamSampling, "behind", checked)
    asked = {"temperature": 1.0, "max_tokens": 40, "stop_token_ids": (7, 8)} | fields
    with pair_of(models, name, drafting=Drafting(pace=(12,), death=0.02)) as pair:
        for number in range(3):
            answer(pair, seed=number, ignore_eos=False, **asked)
    assert num_asked > 30
