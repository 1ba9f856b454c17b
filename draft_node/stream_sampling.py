"""How a request samples, in a draft process: the sampling state that follows its stream.

Blocks are drawn under it as beside the target: what the target will refuse need not be drafted.
A stream without any is drafted for as ever: nothing but acceptance depends on them.
"""

from collections.abc import Sequence
from concurrent.futures import Future

from specserve.grammars.compiler import CompiledGrammar, GrammarCompiler
from specserve.sampling.state import SamplingState
from specserve.transport.control.draft_control import SamplingParameters
from specserve.types import SamplingParams

# Of who has none, where others of a draft batch have some.
PLAIN = SamplingState(SamplingParams(), seed=0, prompt_token_ids=())


class StreamSampling:
    """Of one stream."""

    def __init__(
        self, given: SamplingParameters, compiled: "Future[CompiledGrammar] | None" = None
    ) -> None:
        """`compiled`: its grammar, which counts once it is there."""
        self._given = given
        self._compiled = compiled
        self._state: SamplingState | None = None  # behind the verified tokens it has been told of

    @staticmethod
    def of(
        given: SamplingParameters, vocab_size: int, grammars: GrammarCompiler | None = None
    ) -> "StreamSampling | None":
        """None for parameters that name tokens which are not there.

        Without `grammars` nothing is known of the one that is given.
        """
        sampling = given.sampling
        named = (*given.end_token_ids, *sampling.stop_token_ids, *sampling.logit_bias)
        are_there = all(0 <= token_id < vocab_size for token_id in named)
        if not are_there:
            return None
        if given.grammar is None or grammars is None:
            return StreamSampling(given)
        return StreamSampling(given, grammars.compile(given.grammar))

    def behind(self, token_ids: Sequence[int], length: int, more: Sequence[int]) -> SamplingState:
        """Behind the first `length` of the verified `token_ids`, and `more` of a branch."""
        if length < self._given.num_prompt:  # the round that ends a prompt
            return self._state_of([*token_ids[:length], *more])
        state = self._followed(token_ids, length)
        if state.penalties is None and state.grammar is None and not state.forbidden_ids:
            return state  # nothing of it depends on what was generated
        state = state.fork()
        for token_id in more:
            state.append(token_id)
        return state

    @property
    def _grammar(self) -> CompiledGrammar | None:
        """None where there is none, it is being compiled, or that has failed."""
        compiled = self._compiled
        if compiled is None or not compiled.done() or compiled.exception() is not None:
            return None
        return compiled.result()

    def _lacks_grammar(self, state: SamplingState) -> bool:
        return state.grammar is None and self._grammar is not None

    def _followed(self, token_ids: Sequence[int], length: int) -> SamplingState:
        state = self._state
        if state is None or state.position > length or self._lacks_grammar(state):
            state = self._state = self._state_of(token_ids[: self._given.num_prompt])
        for token_id in token_ids[state.position : length]:
            state.append(token_id)
        return state

    def _state_of(self, text: Sequence[int]) -> SamplingState:
        num_prompt = self._given.num_prompt
        state = SamplingState(
            self._given.sampling,
            seed=0,  # noise is the report's affair
            prompt_token_ids=text[:num_prompt],
            end_token_ids=self._given.end_token_ids,
            grammar=None if self._grammar is None else self._grammar.begin(),
        )
        for token_id in text[num_prompt:]:
            state.append(token_id)
        return state
