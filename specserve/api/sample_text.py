# pyright: strict
"""The text of one sample as it grows: bytes to characters, stop strings, calls, what to hold back.

Knows one sample; knows neither its request nor the target.
"""

import msgspec

from specserve.api.detokenizer import Detokenizer
from specserve.api.events import SampleEnd, TokenDelta
from specserve.api.stop_strings import StopStringMatcher
from specserve.api.tools.parser import ParsedText, ToolCallParser
from specserve.types import FinishReason, SampleDelta, SamplingParams


class SampleText:
    """Turns the target's deltas of one sample into the client's, and ends it at a stop string."""

    def __init__(
        self,
        sample_index: int,
        sampling: SamplingParams,
        detokenizer: Detokenizer,
        calls: ToolCallParser | None = None,
    ) -> None:
        """`calls`: finds those in the text; None: there are none."""
        self._sample_index = sample_index
        self._calls = calls
        self._min_tokens = sampling.min_tokens
        self._detokenizer = detokenizer
        self._matcher = StopStringMatcher(sampling.stop) if sampling.stop else None
        self.num_tokens = 0  # emitted
        self.end: SampleEnd | None = None

    def push(self, delta: SampleDelta) -> TokenDelta | None:
        """What the client gets of this delta; None once the sample has ended."""
        if self.end is not None:
            return None
        num_kept, text = self._read(delta)
        if self.end is None and delta.finish_reason is not None:
            text += self._flush(delta, self.num_tokens + num_kept)
        self.num_tokens += num_kept
        parsed = self._parsed(text)
        whole = num_kept == len(delta.token_ids)
        logprobs = delta.logprobs
        return TokenDelta(
            sample_index=self._sample_index,
            token_ids=delta.token_ids if whole else delta.token_ids[:num_kept],
            text=parsed.text,
            calls=parsed.calls,
            origins=delta.origins if whole else delta.origins[:num_kept],
            cache_hit=delta.cache_hit,
            logprobs=logprobs if whole or logprobs is None else logprobs[:num_kept],
            end=self.end,
            verify_len=delta.verify_len,
        )

    def _parsed(self, text: str) -> ParsedText:
        """What is text of it and what are calls; an answer that ended with calls ended for them."""
        if self._calls is None:
            return ParsedText(text)
        found = self._calls.push(text)
        if self.end is None:
            return found
        rest = self._calls.finish()
        if self._calls.num_calls and self.end.finish_reason is FinishReason.STOP:
            self.end = msgspec.structs.replace(self.end, finish_reason=FinishReason.TOOL_CALLS)
        return ParsedText(found.text + rest.text, found.calls + rest.calls)

    def _read(self, delta: SampleDelta) -> tuple[int, str]:
        """Tokens to keep and their text; sets `end` if a stop string completes."""
        token_ids = delta.token_ids
        num_with_text = len(token_ids)
        if delta.stop_token_id is not None and token_ids[-1:] == [delta.stop_token_id]:
            num_with_text -= 1  # the token that stopped it is counted and not shown
        if self._matcher is None:
            return len(token_ids), self._detokenizer.push(token_ids[:num_with_text])
        pieces: list[str] = []
        for position in range(num_with_text):
            piece = self._detokenizer.push(token_ids[position : position + 1])
            armed = self.num_tokens + position + 1 >= self._min_tokens
            scan = self._matcher.push(piece, armed=armed)
            pieces.append(scan.text)
            if scan.stop_string is not None:
                self._end(FinishReason.STOP, stop_string=scan.stop_string)
                return position + 1, "".join(pieces)
        return len(token_ids), "".join(pieces)

    def _flush(self, delta: SampleDelta, num_tokens: int) -> str:
        """The target ended the sample, after so many tokens: what was held back is final now."""
        assert delta.finish_reason is not None
        text = self._detokenizer.flush()
        stop_string = None
        if self._matcher is not None:
            scan = self._matcher.push(text, armed=num_tokens >= self._min_tokens)
            stop_string = scan.stop_string
            text = scan.text if stop_string is not None else scan.text + self._matcher.flush()
        if stop_string is not None:
            self._end(FinishReason.STOP, stop_string=stop_string)
        else:
            self._end(delta.finish_reason, stop_token_id=delta.stop_token_id)
        return text

    def _end(
        self, reason: FinishReason, stop_string: str | None = None, stop_token_id: int | None = None
    ) -> None:
        self.end = SampleEnd(
            sample_index=self._sample_index,
            finish_reason=reason,
            stop_string=stop_string,
            stop_token_id=stop_token_id,
        )
