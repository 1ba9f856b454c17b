# pyright: strict
"""Configuration: frozen sections, one TOML file, `section.key=value` overrides.

Everything "auto" (None here) is decided once, in `resolve` beside this, and printed at start.
This module knows the names, types, ranges and defaults; it reads no environment and probes no
hardware.
"""

import re
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from specserve.errors import InvalidField
from specserve.settings.config_error import as_invalid_field
from specserve.settings.setting_names import (
    home_of,
    removal_of,
    stray_key,
    unknown_key,
    unknown_section,
)

Text = Annotated[str, Meta(min_length=1)]
Positive = Annotated[int, Meta(ge=1)]
DAY_S = 86_400.0  # no timer of ours is longer, and every timer of the kernel can hold it
Port = Annotated[int, Meta(ge=0, le=65535)]
DEFAULT_MODE = "auto"  # of speculation
MAX_SAMPLES = 4096  # sample indices have 12 bits in the counters of `specserve.noise`

# What nobody has a reason to choose, and several processes have to agree on.
USUAL_HTTP_PORT = 8000  # as of other engines, whose clients ask there
LOOPBACK = "127.0.0.1"
BLOCK_SIZE = 16  # tokens of a KV block
# The likeliest tokens that a draft distribution keeps, in the rejection family. What is cut off is
# lost to acceptance, and a small model's distributions are flat: see bench/LOG.md.
NUM_KEPT = 512
DRAFTER_BITS = 8  # on a CPU, of a drafter's weights and inputs, where that makes it faster


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[model]`: what is served."""

    # Folder, GGUF file, hub id, smollm2 or tiny; None: smollm2 where it is installed, else tiny.
    target: Text | None = None
    name: Text | None = None  # the name clients see; None: see `specserve.settings.model_name`
    # float32 | bfloat16 | float16; None: float32 on CPU, else the file's, and float16 for quantised
    # weights. On CPU it is that of weights and, if bfloat16, of what they are multiplied by and of
    # keys and values (kv_dtype); all else is float32 there, and weights stored in 16 bits stay so.
    dtype: Text | None = None
    # Sampling parameters that a request leaves unset. auto: what the folder's
    # generation_config.json says of temperature, top_p, top_k, min_p and repetition_penalty, and
    # neutral values for the rest | none: those for all.
    generation_config: str = "auto"
    # How the model writes tool calls: auto, as its chat template has them | hermes | llama3_json.
    tool_call_parser: str = "auto"
    ballast: str | None = None  # e.g. "60M": pad the target to this cost; it says the same
    # Tokens, prompt and answer; None: the model's own.
    max_model_len: Annotated[int, Meta(ge=2)] | None = None


class TopologyConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[topology]`: which processes run where."""

    topology: str = "1+0"  # target ranks + draft processes
    device: str | None = None  # cpu | cuda; None: cuda where there are enough of them
    threads: Positive = 1  # cores per target rank on CPU
    # Share devices between processes, and cores with whatever else runs: no process is tied to
    # cores of its own then. Where there are fewer than processes, every report says so.
    oversubscribe: bool = False
    # Processes on one GPU run side by side by NVIDIA MPS, not in turns. None: where it starts.
    mps: bool | None = None
    # Machines that one launch is spread over, which of them this is, and where they meet:
    # HOST:PORT of the first one. Called as torchrun calls them; what is for several is in `hosts`.
    nnodes: Annotated[int, Meta(ge=1, le=64)] = 1
    node_rank: Annotated[int, Meta(ge=0, lt=64)] = 0
    rendezvous: Text | None = None
    spread: Text | None = None  # T+D of every node, such as "2+0,0+1"; None: see `settings.spread`
    # HOST:PORT at which draft nodes attach that `specserve draft` started: the D of T+D are those.
    draft_address: Text | None = None
    private_network: bool = False  # strangers cannot reach what the nodes listen on
    rendezvous_timeout_s: Annotated[float, Meta(ge=1, le=DAY_S)] = 300.0
    node_timeout_s: Annotated[float, Meta(ge=1, le=3600)] = 5.0  # a node silent for longer is lost


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[engine]`: the target node's limits. Lengths in tokens."""

    kv_memory: str | None = None  # per rank, e.g. "512MiB"; None: a share of what is free
    # What keys and values are rounded to when they are kept: float32 | bfloat16 | float16 (CUDA).
    # None: bfloat16 where `model.dtype` is, else what is computed in.
    kv_dtype: Text | None = None
    max_batch_rows: Annotated[int, Meta(ge=1, le=MAX_SAMPLES)] = 64  # samples that run at once
    # Tokens of one forward: decode rows, then prefill chunks.
    max_batch_tokens: Annotated[int, Meta(ge=1, le=2**20)] = 512
    prefix_cache: bool = True
    deterministic: bool | None = None  # None: on for CPU, off for CUDA
    # Forwards of few tokens are captured. None: on for CUDA, unless `deterministic`.
    cuda_graphs: bool | None = None
    # A longer round ends the service.
    hang_timeout_s: Annotated[float, Meta(ge=2, le=DAY_S)] = 120.0


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[server]`: the door. What goes together and what does not is in `settings.door`."""

    # IP address that both APIs listen on. Others than loopback need keys, or `insecure`.
    host: Text = LOOPBACK
    grpc_port: Port = 7411  # 0: any free port, printed at start
    http: bool = True  # the OpenAI-compatible API, beside gRPC
    # 0: any free port; None: 8000, or any free one where `grpc_port` is 0.
    http_port: Port | None = None
    api_key_file: Text | None = None  # see `settings.key_file`; None: nobody needs a key
    insecure: bool = False  # nobody needs a key on any host
    # Hosts that a service without keys is asked by, or that pages which ask it come from, besides
    # this machine's names and addresses: for no other page of a browser. "*": any.
    allowed_hosts: tuple[Text, ...] = ()
    max_requests_per_key: Annotated[int, Meta(ge=0, le=32_768)] = 0  # in flight; 0: no limit
    tls_cert: Text | None = None  # PEM files; None: no TLS
    tls_key: Text | None = None
    lenient: bool = False  # unknown fields of HTTP bodies are left out with a warning, not refused
    # Responses of /v1/responses that can be asked for again, of all keys together; 0: none.
    max_stored_responses: Annotated[int, Meta(ge=0, le=1_000_000)] = 1024
    stored_responses_memory: Text = "256MiB"  # of them together
    stored_responses_ttl_s: Annotated[float, Meta(gt=0, le=30 * DAY_S)] = 3600.0  # since their end
    max_queued_requests: Annotated[int, Meta(ge=1, le=32_768)] = 1024
    drain_timeout_s: Annotated[float, Meta(ge=0, le=DAY_S)] = 30.0
    # That probes say "draining" before new requests are refused: for balancers to look away.
    drain_notice_s: Annotated[float, Meta(ge=0, le=DAY_S)] = 0.0

    @property
    def place(self) -> str:
        """`host` as it stands before a colon and a port."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    @property
    def http_port_wish(self) -> int | None:
        """To be bound; None: no HTTP."""
        if not self.http:
            return None
        usual = USUAL_HTTP_PORT if self.grpc_port else 0
        return usual if self.http_port is None else self.http_port


class SpeculationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[speculation]`: who drafts, and how drafted tokens are verified."""

    # off | sync: in the target's process | async: in draft processes | auto: what is fastest now
    mode: str = DEFAULT_MODE
    # Folder, hub id, "ngram", or the name of an embedded one; None: the embedded default.
    drafter: Text | None = None
    # What drafts in the target's process when `mode` is auto (None: an embedded one, or `drafter`),
    # and when nothing was prepared for an outcome (None: the embedded one beside the embedded one).
    colocated_drafter: Text | None = None
    local_head: Text | None = None  # folder of a DeLS head to add to a DFlash drafter
    verification: str = "foreseeable"  # of unseeded requests: rejection | foreseeable | coupled
    # Drafted tokens a round at most; None: the drafter's own.
    gamma: Annotated[int, Meta(ge=1, le=64)] | None = None
    # Tokens less likely than this to be reached are not verified; None: those that would cost more
    # than they bring, by the times of the rounds so far.
    min_survival: Annotated[float, Meta(ge=0, le=1)] | None = None
    # How many drafted tokens of a round are verified: see `target_node.planning.policies`. None:
    # price, or threshold where `min_survival` is given.
    verify_policy: str | None = None
    # A draft process prepares blocks for this many outcomes a row and round at most.
    fan_out: Annotated[int, Meta(ge=1, le=1024)] = 32
    # C of Saguaro sampling (SSD, Definition 14), for requests under plain rejection; None: none.
    saguaro_c: Annotated[float, Meta(ge=0, le=1)] | None = None
    # A row for whose outcome nothing was prepared: auto|skip|ngram|local_draft|draft_now.
    miss_policy: str = "auto"
    # A draft process whose loop is silent for longer is killed and started again.
    draft_timeout_s: Annotated[float, Meta(ge=0.1, le=3600)] = 1.0
    # Rounds travel by: shm, memory that both processes share | nccl: between GPUs. None: nccl where
    # every process has a GPU of its own, else shm.
    link: str | None = None
    draft_threads: Positive | None = None  # cores per draft process on CPU; None: as for a rank

    @property
    def policy(self) -> str:
        """`verify_policy`, or what it is by default."""
        return self.verify_policy or ("price" if self.min_survival is None else "threshold")

    @property
    def weighs_costs(self) -> bool:
        """Whether what forwards take decides how many tokens are verified."""
        return self.policy not in ("fixed", "threshold")


class TelemetryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[telemetry]`: what the processes say about themselves."""

    log_level: str = "info"  # debug | info | warning | error
    # Between two lines of figures while requests run; 0: none.
    log_interval_s: Annotated[float, Meta(ge=0, le=DAY_S)] = 10.0
    # Spans of requests go there by OTLP over HTTP; needs the `otel` extra. None: no spans.
    otlp_endpoint: Text | None = None


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the user asked for; None means "decide for me"."""

    model: ModelConfig = ModelConfig()
    topology: TopologyConfig = TopologyConfig()
    engine: EngineConfig = EngineConfig()
    server: ServerConfig = ServerConfig()
    speculation: SpeculationConfig = SpeculationConfig()
    telemetry: TelemetryConfig = TelemetryConfig()


ELSEWHERE = -1  # of draft processes that another command has started, wherever


class Placement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where one process runs. Empty `cores` means unpinned."""

    role: str  # target | draft | api
    rank: int  # counts from 0 within the role
    device: str  # cpu | cuda:N
    cores: tuple[int, ...] = ()
    host: int = 0  # the node rank of the machine, or ELSEWHERE

    @property
    def is_on_cpu(self) -> bool:
        return self.device == "cpu"


def state_dtype(device: str | None, dtype: str | None) -> str:
    """What is computed and kept of tokens where `model.dtype` is `dtype`, resolved."""
    return "float32" if device == "cpu" else dtype or "float32"


class ResolvedConfig(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Config with everything decided, as the children read it.

    None is left where it means "none" or "as measured while serving", and, on CUDA, of `num_blocks`
    and `engine.kv_memory`: the target node measures free memory once the weights are loaded.
    """

    placements: tuple[Placement, ...] = ()
    oversubscribed: bool = False
    num_blocks: int | None = None  # of the KV pool of each rank, of `BLOCK_SIZE` tokens
    collectives: str = "gloo"  # what carries tensors between ranks: gloo | nccl
    hosts: tuple[str, ...] = ()  # addresses of the machines, by node rank; of one alone: none
    targets: tuple[str, ...] = ()  # HOST:PORT of those that a draft node serves

    def placement(self, role: str, rank: int = 0) -> Placement:
        """The placement of one process; raises KeyError when the topology has none."""
        for placement in self.placements:
            if (placement.role, placement.rank) == (role, rank):
                return placement
        raise KeyError(f"{role} {rank}")

    @property
    def own_placements(self) -> tuple[Placement, ...]:
        """Those of this machine."""
        return tuple(p for p in self.placements if p.host == self.topology.node_rank)

    def num_sharing(self, device: str) -> int:
        """How many processes run on a device of this machine; over one: it is oversubscribed."""
        return sum(placement.device == device for placement in self.own_placements)

    @property
    def sharing(self) -> str:
        """How processes share devices: what was measured of one way says nothing of another."""
        side_by_side = ", side by side" if self.topology.mps else ""
        spread = f", spread over {self.topology.spread}" if self.hosts else ""
        return f"oversubscribed {self.oversubscribed}{side_by_side}{spread}"

    @property
    def is_on_cpu(self) -> bool:
        """Whether ranks and drafts compute on CPUs."""
        return self.topology.device == "cpu"

    @property
    def state_dtype(self) -> str:
        """Of what is computed and kept of tokens; on a CPU `model.dtype` is that of weights."""
        return state_dtype(self.topology.device, self.model.dtype)

    @property
    def kv_dtype(self) -> str:
        """Of keys and values of the target."""
        assert self.engine.kv_dtype is not None, "resolved"
        return self.engine.kv_dtype

    @property
    def message_cores(self) -> tuple[int, ...]:
        """Where messages are carried, beside the cores that targets compute on.

        The API process's or, if it has none to itself, those of draft processes. Empty: anywhere.
        """
        of_role = {
            role: tuple(core for p in self.own_placements if p.role == role for core in p.cores)
            for role in ("api", "draft")
        }
        return of_role["api"] or of_role["draft"]

    @property
    def far_drafts(self) -> tuple[int, ...]:
        """Ranks of the draft processes on other machines than target rank 0."""
        return tuple(p.rank for p in self.placements if p.role == "draft" and p.host)

    @property
    def num_draft_processes(self) -> int:
        return sum(placement.role == "draft" for placement in self.placements)


def load_config(path: Path | None, overrides: Mapping[str, str]) -> Config:
    """The TOML file at `path` (None: defaults), then `overrides` from "section.key" to text.

    Raises InvalidField naming the file or the key, and the nearest known key for a typing error.
    """
    document = _read_toml(path) if path is not None else {}
    sections: dict[str, Any] = msgspec.to_builtins(_convert(document, strict=True))
    for dotted, text in overrides.items():
        section, _, key = dotted.partition(".")
        if not key:
            raise InvalidField(dotted, "is not of the form section.key")
        is_list = isinstance(getattr(getattr(Config(), section, None), key, None), tuple)
        sections.setdefault(section, {})[key] = text.split(",") if is_list else text
    return _convert(sections, strict=False)


def parse_override(assignment: str) -> tuple[str, str]:
    """`section.key=value` as given to `--set`; raises InvalidField."""
    dotted, equals, value = assignment.partition("=")
    if not equals or "." not in dotted:
        if equals and (removal := removal_of(dotted.strip())) is not None:
            raise InvalidField(dotted.strip(), removal)
        home = home_of(dotted.strip(), known_keys())
        hint = "" if home is None else f" (nearest: {home}={value})"
        raise InvalidField("--set", f"{assignment!r} is not of the form section.key=value{hint}")
    value = value.strip()
    # People write .5 on a command line; numbers of TOML and JSON have digits before the point.
    return dotted.strip(), f"0{value}" if re.fullmatch(r"\.\d+", value) else value


def write_resolved(config: ResolvedConfig, path: Path) -> None:
    """As JSON, for the children of one launch."""
    path.write_bytes(msgspec.json.encode(config))


def read_resolved(path: Path) -> ResolvedConfig:
    """The counterpart of `write_resolved`; raises msgspec.ValidationError."""
    return msgspec.json.decode(path.read_bytes(), type=ResolvedConfig)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InvalidField("--config", f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # TOML or UTF-8
        raise InvalidField("--config", f"{path} is not valid TOML: {error}") from error


def _convert(sections: dict[str, Any], *, strict: bool) -> Config:
    _reject_unknown_keys(sections)
    try:
        return msgspec.convert(sections, Config, strict=strict)
    except msgspec.ValidationError as error:
        raise as_invalid_field(error, Config, sections, strict=strict) from error


def _reject_unknown_keys(sections: dict[str, Any]) -> None:
    """Before msgspec does, to name the nearest key that exists."""
    known = known_keys()
    for name, section in sections.items():
        is_section = isinstance(section, dict)
        if name not in Config.__struct_fields__:
            problem = unknown_section if is_section else stray_key
            raise InvalidField(name, problem(name, known))
        keys = cast("dict[str, Any]", section) if is_section else {}
        for dotted in (f"{name}.{key}" for key in keys):
            if dotted not in known:
                raise InvalidField(dotted, unknown_key(dotted, known))


def known_keys() -> list[str]:
    """Every "section.key" there is."""
    sections = msgspec.structs.asdict(Config())
    return [f"{name}.{key}" for name, section in sections.items() for key in _keys(section)]


def _keys(section: msgspec.Struct) -> tuple[str, ...]:
    return section.__struct_fields__
