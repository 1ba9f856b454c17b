# pyright: strict
"""What a server says about itself, for clients. Field meanings are those of the proto."""

import msgspec


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`Control.GetServerInfo`, without the limits."""

    version: str
    topology: str
    oversubscribed: bool
    uptime_s: float
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
