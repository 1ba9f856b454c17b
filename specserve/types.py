"""The records that travel between processes. Knows no torch, no sockets, no scheduling.

A request's life, in the order of this file: `SamplingParams` inside a `Request` goes from the API
process to the target leader (`Submit`); every round comes back as one `RoundEvents` with the new
tokens of all running samples; the request ends in exactly one `RequestEnd`.

Compatibility contract: fields are only ever appended, with a default; tags are never reused.
Integers are range-checked by `specserve.validation` at the door, and decoding is typed, so a
malformed frame raises instead of travelling on.
"""

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(ge=0, le=1e6)]

# Blocks that are drafted and sent together at most, where they come with their probabilities.
DRAFT_BATCH_SIZE = 16
# Edges of what `Load` tells distributions of.
VERIFY_BUDGET_EDGES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # tokens a round
STEP_TIME_EDGES = (0.5, 0.67, 0.8, 0.9, 0.95, 1.0, 1.05, 1.11, 1.25, 1.5, 2.0)  # ratios


class FinishReason(enum.StrEnum):
    """Why one sample stopped."""

    STOP = "stop"  # an end-of-sequence token, a stop token or a stop string
    LENGTH = "length"  # max_tokens, or the model's context is full
    ABORT = "abort"  # cancelled, or the request failed
    TOOL_CALLS = "tool_calls"  # as STOP, of an answer with calls: the API's word, not the target's


class Terminal(enum.StrEnum):
    """How a request ended. Every accepted request ends in exactly one of these."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    FAILED = "failed"


class TokenOrigin(enum.IntEnum):
    """Where an emitted token came from; speculation fills in all but the first."""

    PLAIN = 0  # decoded without speculation
    DRAFTED = 1  # drafted, verified and accepted
    BONUS = 2  # sampled by the target behind drafted tokens that all stood
    RECOVERY = 3  # sampled by the target in place of the first that did not stand


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to sample, in the field's usual meanings. Limits live in `specserve.validation`.

    Truncations apply in the order temperature, top_k, top_p, min_p, after penalties and bias.
    """

    temperature: float = 1.0  # 0 means greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 means no limit
    min_p: float = 0.0
    presence_penalty: float = 0.0  # over generated tokens
    frequency_penalty: float = 0.0  # over generated tokens
    repetition_penalty: float = 1.0  # over prompt and generated tokens
    logit_bias: dict[int, float] = {}
    stop: tuple[str, ...] = ()  # matched on text by the API session
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    max_tokens: int = 256
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None  # None: none; k: the sampled token and the k likeliest
    prompt_logprobs: int | None = None


class GrammarKind(enum.StrEnum):
    """In which language a grammar is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"  # of Rust's crate: without looking around and back
    GRAMMAR = "grammar"  # Lark's EBNF, or llama.cpp's GBNF
    CHOICE = "choice"  # a JSON list of texts
    STRUCTURAL_TAG = "structural_tag"  # text with parts that keep to schemas, as vLLM has it


class Grammar(msgspec.Struct, frozen=True):
    """What a text has to be."""

    kind: GrammarKind
    text: str
    field: str = ""  # the client's name of it, for refusals


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted request. `seed` is always set: an unseeded request got a random one."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    seed: int  # 0 <= seed < 2**64
    seeded_by_user: bool = False
    cache_salt: str = ""  # prefix blocks are shared only between equal salts
    priority: int = 0  # lower runs first
    deadline_s: float | None = None  # CLOCK_MONOTONIC seconds of this host; None: no deadline
    max_verify_len: int | None = None  # drafted tokens a round; 0: none, None: the server decides
    min_tokens_per_s: float | None = None  # that each sample aims at; None: as it comes
    grammar: Grammar | None = None  # of the texts of all samples


class Speculation(msgspec.Struct, frozen=True, array_like=True):
    """Drafted tokens of one row, in order, with what was known of each before it was drawn."""

    token_ids: tuple[int, ...]
    # P(token k accepted | those before it were); None: the drafter has no opinion.
    confidences: tuple[float, ...] | None = None
    branch: int = 0  # which of the blocks drafted for this row and round
    place: int = 0  # of the block in the batch that holds its distributions


class DraftTime(msgspec.Struct, frozen=True):
    """So many blocks at once: fixed_s + tokens * token_s, the latter 0 of what takes one pass."""

    num_blocks: Annotated[int, Meta(ge=1, le=2**20)]
    fixed_s: Seconds
    token_s: Seconds

    def seconds(self, num_tokens: float) -> float:
        return self.fixed_s + num_tokens * self.token_s


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities at one position, natural log, of the target's distribution before
    truncation.

    The target knows no text: the API adds what tokens stand for, in bytes, since a token may end
    inside a character.
    """

    token_id: int
    logprob: float
    rank: int  # 1 is the likeliest token
    top_ids: list[int] = []
    top_logprobs: list[float] = []
    token_bytes: bytes = b""
    top_bytes: list[bytes] = []


class SampleDelta(msgspec.Struct, frozen=True, array_like=True):
    """What one round added to one sample of one request."""

    request_id: str
    sample_index: int
    token_ids: list[int]
    origins: list[TokenOrigin]
    logprobs: list[Logprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the token that stopped it, when one did
    cache_hit: bool | None = None  # of the speculation verified in this round; None: no lookup
    verify_len: int = 0  # drafted tokens that were verified in this round


class RequestStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Counts and times of a finished request; times are seconds."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # prompt tokens served by the prefix cache
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    num_rounds: int = 0
    num_drafted_tokens: int = 0  # those that were verified
    num_accepted_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    num_drafts: int = 0  # rounds that verified at least one drafted token
    num_accepted_per_position: list[int] = []  # accepted tokens by their place in the block


# --- API process -> target leader -----------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    request: Request


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End a request wherever it is; unknown ids are ignored (abort is idempotent)."""

    request_id: str


class StopSample(msgspec.Struct, frozen=True, tag="stop_sample"):
    """End one sample whose stop string the API found; a finished or unknown one is ignored.

    The target finishes the sample with `FinishReason.STOP`; the request ends when its last sample
    does. Tokens decoded meanwhile are dropped by the API and never counted.
    """

    request_id: str
    sample_index: int


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Finish what runs, accept nothing new; answered by `Drained`."""


class Profile(msgspec.Struct, frozen=True, tag="profile"):
    """Record `num_rounds` rounds (0: give up) with the torch profiler, write a trace to `path`."""

    num_rounds: int
    path: str


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The API process is there; answered by `Ready`, so a restarted side finds the other."""


ToTarget = Submit | Abort | StopSample | Drain | Profile | Hello


# --- target leader -> API process -----------------------------------------------------------


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """What the target serves, once it can. Sizes in tokens unless named otherwise."""

    model: str
    model_type: str
    vocab_size: int
    max_model_len: int
    num_layers: int
    num_params: int  # without ballast
    ballast_params: int
    dtype: str
    half_weights: bool
    kv_dtype: str
    device: str
    tensor_parallel: int
    oversubscribed: bool
    deterministic: bool
    cuda_graphs: bool
    backend: str  # and how it computes, for people
    block_size: int
    num_blocks: int
    max_batch_rows: int
    max_batch_tokens: int
    eos_token_ids: tuple[int, ...]
    speculation: str = "off"
    drafter: str = ""  # the architecture; empty when off
    verification: str = ""  # the method of requests without a seed; empty when off
    gamma: int = 0  # drafted tokens a round at most


class RoundEvents(msgspec.Struct, frozen=True, tag="round"):
    """All that one round made, in one frame."""

    round_id: int
    deltas: list[SampleDelta]


class PromptLogprobs(msgspec.Struct, frozen=True, tag="prompt_logprobs"):
    """Log probabilities of prompt tokens 1..N-1 (the first has none), in order, in pieces."""

    request_id: str
    positions: list[Logprobs]


class RequestEnd(msgspec.Struct, frozen=True, tag="end"):
    """The one terminal state of a request."""

    request_id: str
    terminal: Terminal
    stats: RequestStats
    error: str = ""  # one line naming the field and the limit; empty unless rejected or failed
    code: str = ""  # the gRPC status name that fits, for rejected and failed


class Distribution(msgspec.Struct, frozen=True, array_like=True):
    """How many values were at most each of some edges, and more than the edge before; their sum.

    The last count is of those beyond the last edge; no counts at all: no value yet.
    """

    counts: list[int] = []
    total: float = 0.0


class PositionCalibration(msgspec.Struct, frozen=True, array_like=True):
    """Confidences of one position of drafted blocks beside what became of its tokens."""

    num_judged: int  # tokens that had a confidence and were reached: all before them stood
    num_accepted: int
    confidence: float  # the sum of theirs
    error: float  # expected calibration error, 0 to 1


class DraftReport(msgspec.Struct, frozen=True, array_like=True):
    """One draft process of the topology as the target sees it; counts since the target's start."""

    is_attached: bool
    bytes_sent: int = 0  # to it, over its link
    bytes_received: int = 0
    state: str = "away"  # attached | silent | misfit (it is not what this target needs) | away


class Load(msgspec.Struct, frozen=True, tag="load", omit_defaults=True):
    """Published a few times a second, so that nobody has to ask the loop."""

    num_running: int = 0
    num_waiting: int = 0
    num_free_blocks: int = 0
    num_blocks: int = 0
    num_cached_blocks: int = 0
    num_preemptions: int = 0
    num_rounds: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    round_s: float = 0.0  # exponential moving average of a decode round
    draining: bool = False
    uptime_s: float = 0.0
    num_drafts: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_per_position: list[int] = []
    num_draft_processes: int = 0  # of the topology
    num_drafts_attached: int = 0  # those that work with the target now
    speculation_regime: str = "off"  # of the last round: off | sync | async
    num_lookups: int = 0  # rows for which a prepared block was looked up
    num_hits: int = 0  # those for which there was one
    bytes_sent: int = 0  # to draft processes, over the links
    bytes_received: int = 0
    num_draft_batches: int = 0  # pushes that arrived
    num_late_draft_batches: int = 0  # those that no round could use any more
    num_broken_laws: int = 0  # rows whose drafted tokens came with distributions that are none
    draft_batch_s: float = 0.0  # that draft processes took for those that arrived
    wait_s: float = 0.0  # for drafts, where the miss policy waits; part of `draft_s`
    num_decode_rounds: int = 0  # without prefill; the times are of these
    draft_s: float = 0.0  # before the forwards: drafting, looking up, reporting
    forward_s: float = 0.0
    # Of the drafted tokens, those that stood in for blocks missing of draft processes.
    num_stand_in_draft_tokens: int = 0
    num_stand_in_accepted_tokens: int = 0
    num_rounds_by_mode: dict[str, int] = {}  # off | sync | async
    num_lookups_after_hit: int = 0  # of the look-ups, those of rows whose one before was a hit
    num_hits_after_hit: int = 0
    num_prepared_blocks: int = 0  # that there were for the rows looked up: the fan-out, summed
    num_misses: dict[str, int] = {}  # rows without a block, by what was to be done: `Miss`
    num_waits: int = 0  # for drafts, which took `wait_s`
    drafts: list[DraftReport] = []
    verify_budget: Distribution = Distribution()  # drafted tokens a decode round verified
    # What a round's forward and verification was expected to take, over what they took.
    step_time_ratio: Distribution = Distribution()
    step_time_error: float | None = None  # median of |ratio - 1|, of the latest rounds
    calibration: list[PositionCalibration] = []  # by position


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    pass


class Profiled(msgspec.Struct, frozen=True, tag="profiled"):
    path: str
    error: str = ""


FromTarget = Ready | RoundEvents | PromptLogprobs | RequestEnd | Load | Drained | Profiled
