"""A unary answer is refused for its size exactly if it could not be sent."""

import random

import pytest

from specserve.api.events import Event, Finished, PromptInfo, SampleEnd, Timings, TokenDelta, Usage
from specserve.api.from_proto import struct_of
from specserve.api.info import SpecStats
from specserve.api.to_proto import ResponseBuilder, spec_stats_of
from specserve.errors import Exhausted
from specserve.types import (
    Distribution,
    DraftReport,
    FinishReason,
    Load,
    Logprobs,
    PositionCalibration,
    TokenOrigin,
)

NO_LIMIT = 2**31
END = SampleEnd(sample_index=0, finish_reason=FinishReason.LENGTH)
USAGE = Usage(num_prompt_tokens=1, num_cached_tokens=0, num_generated_tokens=1)
TIMINGS = Timings(queue_s=0, prefill_s=0, time_to_first_token_s=0, decode_s=0, total_s=0)


def logprobs(source: random.Random) -> Logprobs:
    count = source.choice([1, 5])
    token_ids = [source.randrange(100_000) for _ in range(count)]
    pieces = [b"word"] * count
    return Logprobs(token_ids[0], -1.0, 1, token_ids, [-1.0] * count, b"word", pieces)


def some_events(source: random.Random) -> list[Event]:
    request_id = "x" * source.choice([1, 36, 256])
    num_samples, wants = source.choice([1, 3]), source.random() < 0.5
    events: list[Event] = [PromptInfo(request_id=request_id, num_prompt_tokens=10**6)]
    for _ in range(source.choice([0, 40])):
        positions = [logprobs(source) for _ in range(source.choice([1, 16]))]
        events.append(
            PromptInfo(request_id=request_id, num_prompt_tokens=10**6, prompt_logprobs=positions)
        )
    for _ in range(source.choice([0, 200])):
        count = source.choice([0, 1, 1, 8])
        events.append(
            TokenDelta(
                sample_index=source.randrange(num_samples),
                token_ids=[source.randrange(100_000) for _ in range(count)],
                text="é" * source.choice([0, 1, 4, 400]),
                origins=[TokenOrigin.PLAIN] * count,
                cache_hit=source.choice([None, True]),
                logprobs=[logprobs(source) for _ in range(count)] if wants else None,
            )
        )
    ends = [
        SampleEnd(sample_index=index, finish_reason=FinishReason.LENGTH)
        for index in range(num_samples)
    ]
    events.append(Finished(samples=ends, usage=USAGE, timings=TIMINGS))
    return events


def built(events: list[Event], max_bytes: int):
    builder = ResponseBuilder(max_bytes)
    for event in events:
        builder.add(event)
    return builder.build()


@pytest.mark.parametrize("seed", range(20))
def test_what_fits_is_never_refused_and_what_does_not_always_is(seed):
    events = some_events(random.Random(seed))
    size = built(events, NO_LIMIT).ByteSize()
    assert built(events, size).ByteSize() == size
    with pytest.raises(Exhausted, match=r"^max_message_bytes: "):
        built(events, size - 1)


@pytest.mark.parametrize("logprob", [None, [Logprobs(7, -1.0, 1, [], [], b"w", [])]])
@pytest.mark.parametrize("token_id", [0, 127, 128, 3000, 100_000])
def test_many_small_deltas_are_refused_long_before_the_last(token_id, logprob):
    delta = TokenDelta(
        sample_index=0, token_ids=[token_id], text="word", origins=[TokenOrigin.PLAIN],
        logprobs=logprob,
    )  # fmt: skip
    end = Finished(samples=[END], usage=USAGE, timings=TIMINGS)
    size = built([*[delta] * 2000, end], NO_LIMIT).ByteSize()
    with pytest.raises(Exhausted, match=r"^max_message_bytes: "):
        built([delta] * 1010, size // 2)


def test_every_statistic_of_speculation_arrives_as_what_it_is():
    renamed = {
        "num_draft_tokens": "num_drafted_tokens",
        "num_accepted_tokens_per_pos": "num_accepted_per_position",
        "num_waves": "num_draft_batches",
        "num_late_waves": "num_late_draft_batches",
        "wave_s": "draft_batch_s",
    }
    special = {
        "num_accepted_tokens_per_pos": [5, 3],
        "speculation_regime": "async",
        "num_misses": {"skip": 3, "draft_now": 2},
        "num_rounds_by_mode": {"off": 1, "async": 2},
    }
    made_of = {"verify_budget_tokens", "calibration", "drafts"}  # what has another form
    known = {
        name: special.get(name, 2 + number)
        for number, name in enumerate(SpecStats.__struct_fields__)
        if name not in made_of
    }
    load = Load(**{renamed.get(name, name): value for name, value in known.items()})
    stats = struct_of(spec_stats_of(load), SpecStats)
    for name, value in known.items():
        found = getattr(stats, name)
        assert (list(found) if isinstance(value, list) else found) == value, name


def test_what_positions_and_draft_processes_did_arrives():
    load = Load(
        verify_budget=Distribution([1, 2], 7.0),
        calibration=[PositionCalibration(4, 2, 3.0, 0.25), PositionCalibration(2, 0, 0.0, 0.0)],
        drafts=[
            DraftReport(is_attached=True, bytes_sent=5, bytes_received=6, state="attached"),
            DraftReport(is_attached=False, state="misfit"),
        ],
    )
    stats = struct_of(spec_stats_of(load), SpecStats)
    assert stats.verify_budget_tokens == 7
    first, second = stats.calibration
    assert (first.mean_confidence, first.mean_acceptance, first.error) == (0.75, 0.5, 0.25)
    assert (second.num_judged, second.mean_confidence, second.mean_acceptance) == (2, 0.0, 0.0)
    drafts = [(d.is_attached, d.bytes_sent, d.bytes_received, d.state) for d in stats.drafts]
    assert drafts == [(True, 5, 6, "attached"), (False, 0, 0, "misfit")]


def test_what_nobody_has_predicted_has_no_error():
    assert struct_of(spec_stats_of(Load()), SpecStats).step_time_error is None
    assert struct_of(spec_stats_of(Load(step_time_error=0.0)), SpecStats).step_time_error == 0.0
