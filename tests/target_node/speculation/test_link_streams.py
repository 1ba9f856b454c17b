"""Stream numbers mean one sample for ever, and a new attachment is told everything."""

from specserve.types import Request, SamplingParams
from target_node.sequence import Sequence
from target_node.speculation.link_streams import LinkStreams


def sequence(index: int = 0) -> Sequence:
    request = Request(request_id="r", prompt_token_ids=[1, 2], sampling=SamplingParams(n=4), seed=1)
    return Sequence(request, sample_index=index, arrival=0)


def test_a_sample_has_one_number_and_no_other_ever_gets_it():
    streams, first, second = LinkStreams(), sequence(), sequence(1)
    numbers = {streams.of(first).number, streams.of(second).number}
    assert streams.of(first) is streams.of(first)
    assert streams.forget(first).number in numbers
    assert streams.of(first).number not in numbers
    assert streams.of(sequence(2)).number not in {*numbers, streams.of(first).number}


def test_an_ended_sample_is_unknown():
    streams, ended = LinkStreams(), sequence()
    number = streams.of(ended).number
    assert streams.numbered(number).sequence is ended
    streams.forget(ended)
    assert streams.forget(ended) is None
    assert streams.numbered(number) is None
    assert (len(streams), streams.round_of(number, epoch=0)) == (0, None)


def test_what_was_told_to_one_attachment_is_unknown_to_the_next():
    stream = LinkStreams().of(sequence())
    assert stream.told_up_to(epoch=4) == 0
    stream.num_sent = 17
    assert stream.told_up_to(epoch=4) == 17
    assert stream.told_up_to(epoch=5) == 0
    assert stream.told_up_to(epoch=5) == 0


def test_rounds_are_those_of_the_samples():
    streams, running = LinkStreams(), sequence()
    stream = streams.of(running)
    stream.told_up_to(epoch=4)
    running.num_rounds = 9
    assert streams.round_of(stream.number, epoch=4) == 9
    assert streams.round_of(stream.number, epoch=5) is None  # another draft's affair
    stream.told_up_to(epoch=5)
    assert streams.round_of(stream.number, epoch=5) == 9
