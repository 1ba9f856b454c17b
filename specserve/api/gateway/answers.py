"""Events of a request as a gateway's messages: pieces of a stream, and what ends each sample.

A piece has what is new, an end all of a sample: its tokens, counts, and what speculation did for
it. Texts are the gateway's own, made of token ids.
"""

from collections.abc import Collection, Iterator, Sequence

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from specserve.api.events import Event, Finished, PromptInfo, SampleEnd, TokenDelta, Usage
from specserve.errors import Exhausted
from specserve.types import Logprobs, TokenOrigin


class _Sample:
    """What there is of one sample so far. `num_bytes`: that its end will have, at least."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.token_ids: list[int] = []
        self.logprobs: list[Logprobs] = []
        self.num_verified = 0  # drafted tokens, in rounds of which something was sent
        self.num_accepted = 0

    def add(self, delta: TokenDelta, *, keeps_logprobs: bool) -> None:
        self.token_ids += delta.token_ids
        if keeps_logprobs:
            self.logprobs += delta.logprobs or ()
        self.num_bytes += len(delta.token_ids) + _least_bytes(delta.logprobs or ())
        self.num_verified += delta.verify_len
        self.num_accepted += delta.origins.count(TokenOrigin.DRAFTED)


class Answers:
    """Makes the messages of one request, event by event."""

    def __init__(
        self, request: pb.GenerateRequest, eos_token_ids: Collection[int], max_bytes: int
    ) -> None:
        """`eos_token_ids`: with which a model ends its answer; they are nobody's stop tokens."""
        self._is_stream = request.stream
        self._prompt_ids = request.tokenized.input_ids
        self._wants_prompt_logprobs = request.sampling_params.HasField("prompt_logprobs")
        self._eos_token_ids = eos_token_ids
        self._max_bytes = max_bytes
        self._num_prompt_tokens = 0
        self._prompt_logprobs: list[Logprobs] = []
        self._samples: dict[int, _Sample] = {}

    def of(self, event: Event) -> Iterator[pb.GenerateResponse]:
        """What the gateway gets of it.

        Raises Exhausted for a message that could not be sent; where an answer comes as a whole, as
        soon as it is sure to be one: else it would be decoded to its end for nothing.
        """
        for message in self._of(event):
            self._refuse_if_more(message.ByteSize())
            yield message

    def _refuse_if_more(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            problem = f"the answer is larger than {self._max_bytes} bytes"
            raise Exhausted(f"max_message_bytes: {problem}; ask for fewer tokens or logprobs")

    def _of(self, event: Event) -> Iterator[pb.GenerateResponse]:
        match event:
            case PromptInfo():
                self._num_prompt_tokens = event.num_prompt_tokens
                self._prompt_logprobs += event.prompt_logprobs
            case TokenDelta() if event.token_ids:  # others hold text alone
                is_first = event.sample_index not in self._samples
                prompt_bytes = _least_bytes(self._prompt_logprobs) if is_first else 0
                sample = self._samples.setdefault(event.sample_index, _Sample(prompt_bytes))
                sample.add(event, keeps_logprobs=not self._is_stream)
                if self._is_stream:
                    yield pb.GenerateResponse(chunk=self._chunk_of(event, is_first=is_first))
                else:
                    self._refuse_if_more(sample.num_bytes)
            case Finished():
                for end in event.samples:
                    if self._is_stream:
                        yield pb.GenerateResponse(chunk=self._last_chunk_of(end, event.usage))
                    yield pb.GenerateResponse(complete=self._complete_of(end, event.usage))
            case _:
                pass

    def _chunk_of(self, delta: TokenDelta, *, is_first: bool) -> pb.GenerateStreamChunk:
        return pb.GenerateStreamChunk(
            token_ids=delta.token_ids,
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=len(delta.token_ids),
            output_logprobs=_output_logprobs(delta.logprobs),
            input_logprobs=self._input_logprobs() if is_first else None,
            index=delta.sample_index,
        )

    def _last_chunk_of(self, end: SampleEnd, usage: Usage) -> pb.GenerateStreamChunk:
        """Without tokens: gateways read of chunks how much of a prompt was cached."""
        return pb.GenerateStreamChunk(
            prompt_tokens=usage.num_prompt_tokens,
            cached_tokens=usage.num_cached_tokens,
            index=end.sample_index,
        )

    def _complete_of(self, end: SampleEnd, usage: Usage) -> pb.GenerateComplete:
        sample = self._samples.get(end.sample_index, _Sample(0))
        complete = pb.GenerateComplete(
            output_ids=sample.token_ids,
            finish_reason=end.finish_reason.value,
            prompt_tokens=usage.num_prompt_tokens,
            completion_tokens=len(sample.token_ids),
            cached_tokens=usage.num_cached_tokens,
            output_logprobs=_output_logprobs(sample.logprobs),
            # A stream has sent them.
            input_logprobs=None if self._is_stream else self._input_logprobs(),
            index=end.sample_index,
            spec_accepted_tokens=sample.num_accepted,
            spec_draft_tokens=sample.num_verified,
        )
        if end.stop_string is not None:
            complete.matched_stop_str = end.stop_string
        elif end.stop_token_id is not None and end.stop_token_id not in self._eos_token_ids:
            complete.matched_token_id = end.stop_token_id
        return complete

    def _input_logprobs(self) -> pb.InputLogProbs | None:
        """Of the prompt's tokens, of which the first has none."""
        if not self._wants_prompt_logprobs:
            return None
        positions = self._prompt_logprobs
        known = [pb.InputTokenLogProb(value=each.logprob) for each in positions]
        return pb.InputLogProbs(
            token_logprobs=[pb.InputTokenLogProb(), *known],
            token_ids=[*self._prompt_ids[:1], *(each.token_id for each in positions)],
            top_logprobs=[pb.TopLogProbs(), *map(_top_of, positions)],
        )


def _least_bytes(positions: Sequence[Logprobs]) -> int:
    """Of log probabilities in a message: for each token a number of four bytes and an id of one."""
    return 5 * sum(1 + len(each.top_ids) for each in positions)


def _output_logprobs(positions: Sequence[Logprobs] | None) -> pb.OutputLogProbs | None:
    if not positions:
        return None
    return pb.OutputLogProbs(
        token_logprobs=[each.logprob for each in positions],
        token_ids=[each.token_id for each in positions],
        top_logprobs=map(_top_of, positions),
    )


def _top_of(position: Logprobs) -> pb.TopLogProbs:
    return pb.TopLogProbs(values=position.top_logprobs, token_ids=position.top_ids)
