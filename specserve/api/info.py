# pyright: strict
"""What a server says about itself, for clients. Field meanings are those of the proto."""

import msgspec


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a request may ask of a service, whatever its model. A 0 is not sent: hence defaults."""

    max_queued_requests: int = 0
    max_samples: int = 0
    max_logprobs: int = 0
    max_message_bytes: int = 0
    stream_buffer_rounds: int = 0


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`Control.GetServerInfo`."""

    version: str
    topology: str
    oversubscribed: bool
    uptime_s: float
    limits: ServerLimits
    state: str


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`Control.GetModelInfo`."""

    model: str
    model_type: str
    vocab_size: int
    max_model_len: int
    num_layers: int
    num_params: int
    ballast_params: int
    dtype: str
    half_weights: bool
    kv_dtype: str
    device: str
    tensor_parallel: int
    deterministic: bool
    cuda_graphs: bool
    backend: str
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    default_sampling: dict[str, int | float]


class ServerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """`Control.GetLoad`."""

    num_in_flight: int
    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_blocks: int
    num_cached_blocks: int
    num_preemptions: int
    num_rounds: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    round_s: float
    draining: bool
    num_malformed_frames: int
    num_draft_processes: int
    num_drafts_attached: int
    speculation_regime: str
    report_age_s: float
    uptime_s: float


class SpecConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`SpecInfo.GetSpecConfig`."""

    mode: str
    gamma: int
    num_draft_processes: int
    drafter: str
    verification: str
    fan_out: int
    wave: int
    fan_out_rule: str
    miss_policy: str


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Of one position of drafted blocks. A 0 is not sent: hence defaults."""

    num_judged: int = 0
    num_accepted: int = 0
    confidence: float = 0.0
    error: float = 0.0

    @property
    def mean_confidence(self) -> float:
        return self.confidence / max(1, self.num_judged)

    @property
    def mean_acceptance(self) -> float:
        return self.num_accepted / max(1, self.num_judged)


class DraftStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Of one draft process."""

    is_attached: bool = False
    bytes_sent: int = 0
    bytes_received: int = 0
    state: str = "away"


class SpecStats(msgspec.Struct, frozen=True, kw_only=True):
    """What `SpecInfo.WatchSpecStats` tells at one time: counts since the target's start."""

    uptime_s: float
    num_rounds: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: tuple[int, ...]
    num_lookups: int
    num_hits: int
    bytes_sent: int
    bytes_received: int
    num_draft_processes: int
    num_drafts_attached: int
    speculation_regime: str
    num_waves: int
    num_late_waves: int
    wave_s: float
    num_broken_laws: int
    num_stand_in_draft_tokens: int
    num_stand_in_accepted_tokens: int
    wait_s: float
    num_decode_rounds: int
    draft_s: float
    forward_s: float
    num_lookups_after_hit: int
    num_hits_after_hit: int
    num_prepared_blocks: int
    num_misses: dict[str, int]
    num_rounds_by_mode: dict[str, int]
    num_waits: int
    verify_budget_tokens: int
    calibration: tuple[Calibration, ...]
    drafts: tuple[DraftStatus, ...]
    step_time_error: float | None = None

    @property
    def acceptance_rate(self) -> float | None:
        """Of verified drafted tokens; None before any was."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def hit_rate(self) -> float | None:
        """Of looked up rows, those whose block a draft process had prepared; None before any."""
        return self.num_hits / self.num_lookups if self.num_lookups else None
