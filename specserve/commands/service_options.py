# pyright: strict
"""Flags that configure a service, shared by every command that can start one.

A flag is only another spelling of `section.key=value`: its text goes to `specserve.settings.config`
unchecked, so that files, flags and `--set` share one set of rules and one kind of error.
"""

import argparse
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from specserve.settings.config import DEFAULT_MODE, Config, load_config, parse_override

_Flag = TypeVar("_Flag", tuple[str, str, str], tuple[str, str, str, str])
_VALUE_FLAGS = (
    ("--target", "model.target", "MODEL",
     "folder, .gguf file, hub id, smollm2 or tiny (default: smollm2 if installed, else tiny)"),
    ("--name", "model.name", "NAME", "name that clients see"),
    ("--dtype", "model.dtype", "DTYPE", "float32, bfloat16 or float16"),
    ("--ballast", "model.ballast", "PARAMS", "pad the target to this cost, e.g. 60M"),
    ("--max-model-len", "model.max_model_len", "TOKENS", "limit of prompt and answer together"),
    ("--topology", "topology.topology", "T+D", "T target ranks, D draft processes (default 1+0)"),
    ("--device", "topology.device", "cpu|cuda", "default: cuda where there are enough devices"),
    ("--threads", "topology.threads", "CORES", "cores per target rank on CPU (default 1)"),
    ("--draft-threads", "speculation.draft_threads", "CORES", "cores per draft process on CPU"),
    ("--nnodes", "topology.nnodes", "NODES", "machines that the launch is spread over (default 1)"),
    ("--node-rank", "topology.node_rank", "RANK", "which of them this is; 0 has the API (default)"),
    ("--rendezvous", "topology.rendezvous", "HOST:PORT",
     "of node 0, where the nodes meet: the same on every one"),
    ("--spread", "topology.spread", "T+D,T+D",
     "of every node (default: ranks fill nodes, draft processes go where none is)"),
    ("--draft-address", "topology.draft_address", "HOST:PORT",
     "where draft nodes attach that `specserve draft` has started: the D of --topology are those"),
    ("--rendezvous-timeout-s", "topology.rendezvous_timeout_s", "SECONDS",
     "until all nodes have come (default 300)"),
    ("--node-timeout-s", "topology.node_timeout_s", "SECONDS",
     "a node that is silent for longer is lost (default 5)"),
    ("--port", "server.grpc_port", "PORT", "gRPC port; 0 takes any free one (default 7411)"),
    ("--http-port", "server.http_port", "PORT",
     "of the OpenAI-compatible API; 0 takes any free one (default 8000, with --port 0 any)"),
    ("--host", "server.host", "ADDRESS",
     "that both APIs listen on (default 127.0.0.1); others need --api-key-file or --insecure"),
    ("--api-key-file", "server.api_key_file", "FILE",
     "keys, one a line, with a name before it if you like; who has none is refused"),
    ("--allowed-hosts", "server.allowed_hosts", "NAME",
     "that requests without keys may name besides this machine's (Host, Origin); * is any"),
    ("--max-requests-per-key", "server.max_requests_per_key", "REQUESTS",
     "in flight of one key; more are refused (default 0: no limit)"),
    ("--tls-cert", "server.tls_cert", "FILE", "PEM file: certificate, and those that vouch for it"),
    ("--tls-key", "server.tls_key", "FILE", "PEM file: its key, without a password"),
    ("--max-stored-responses", "server.max_stored_responses", "RESPONSES",
     "of /v1/responses that can be asked for again; 0 keeps none (default 1024)"),
    ("--stored-responses-memory", "server.stored_responses_memory", "SIZE",
     "of them together (default 256MiB)"),
    ("--stored-responses-ttl-s", "server.stored_responses_ttl_s", "SECONDS",
     "that each is kept after its end (default 3600)"),
    ("--max-queued-requests", "server.max_queued_requests", "REQUESTS",
     "in flight; more are refused (default 1024)"),
    ("--drain-timeout-s", "server.drain_timeout_s", "SECONDS",
     "that running requests have left after a stop (default 30)"),
    ("--drain-notice-s", "server.drain_notice_s", "SECONDS",
     "that probes say so before a stop refuses requests (default 0)"),
    ("--max-batch-rows", "engine.max_batch_rows", "ROWS", "samples that run at once (default 64)"),
    ("--max-batch-tokens", "engine.max_batch_tokens", "TOKENS",
     "tokens of one forward (default 512)"),
    ("--hang-timeout-s", "engine.hang_timeout_s", "SECONDS",
     "a round that takes longer ends the service (default 120)"),
    ("--speculation", "speculation.mode", "MODE",
     f"off, sync, async or auto (default {DEFAULT_MODE})"),
    ("--drafter", "speculation.drafter", "DRAFTER",
     "folder, .gguf file, hub id, ngram, or lm or dspark, which ship"),
    ("--colocated-drafter", "speculation.colocated_drafter", "DRAFTER",
     "drafter in the target's process: of mode auto, and for misses"),
    ("--local-head", "speculation.local_head", "FOLDER", "DeLS head for a DFlash drafter"),
    ("--verification", "speculation.verification", "METHOD", "rejection, foreseeable or coupled"),
    ("--gamma", "speculation.gamma", "TOKENS", "drafted tokens a round at most"),
    ("--fan-out", "speculation.fan_out", "BLOCKS", "drafted ahead for each row (default 32)"),
    ("--saguaro-c", "speculation.saguaro_c", "FACTOR",
     "0 to 1: drafts of prepared tokens weigh so much, under rejection (default: as drafted)"),
    ("--min-survival", "speculation.min_survival", "CHANCE",
     "0 to 1: drafted tokens less likely to be reached are not verified (default: by cost)"),
    ("--verify-policy", "speculation.verify_policy", "POLICY",
     "fixed|threshold|price|causal|barrier|global: how many drafted tokens (default price)"),
    ("--miss-policy", "speculation.miss_policy", "POLICY", "auto|skip|ngram|local_draft|draft_now"),
    ("--draft-timeout-s", "speculation.draft_timeout_s", "SECONDS",
     "a draft process that is silent for longer is started again (default 1)"),
    ("--link", "speculation.link", "shm|nccl",
     "to draft processes (default: nccl where every process has a GPU of its own, else shm)"),
    ("--log-level", "telemetry.log_level", "LEVEL", "debug, info, warning or error (default info)"),
    ("--log-interval-s", "telemetry.log_interval_s", "SECONDS",
     "between two lines of figures while requests run; 0: none (default 10)"),
    ("--otlp-endpoint", "telemetry.otlp_endpoint", "URL",
     "spans of requests go to this OTLP collector, over HTTP; needs specserve[otel]"),
    ("--generation-config", "model.generation_config", "auto|none",
     "whether the model's own file says what unset sampling parameters are (default auto)"),
    ("--tool-call-parser", "model.tool_call_parser", "FORMAT",
     "of tool calls: hermes or llama3_json (default auto: as the chat template has them)"),
    ("--kv-memory", "engine.kv_memory", "SIZE", "KV pool of each rank, e.g. 512MiB"),
    ("--kv-dtype", "engine.kv_dtype", "DTYPE",
     "of keys and values (default: bfloat16 with --dtype bfloat16, else what is computed in)"),
)  # fmt: skip
_SWITCHES = (
    ("--http", "server.http", "serve the OpenAI-compatible API, too (default)"),
    ("--lenient", "server.lenient", "leave unknown fields of HTTP bodies out, with a warning"),
    ("--insecure", "server.insecure", "serve on any --host without keys"),
    ("--oversubscribe", "topology.oversubscribe", "share devices, and cores with all that runs"),
    (
        "--private-network",
        "topology.private_network",
        "no stranger reaches what nodes say to each other: for places beyond loopback",
    ),
    ("--mps", "topology.mps", "processes on one GPU run side by side (default: where MPS starts)"),
    ("--deterministic", "engine.deterministic", "same bits in every batch and at every T"),
    ("--cuda-graphs", "engine.cuda_graphs", "replay forwards of few tokens (default on CUDA)"),
    ("--prefix-cache", "engine.prefix_cache", "share the KV blocks of equal prefixes"),
)
_SECTIONS = {  # of a file, in the order of docs/configuration.md
    "model": "what is served",
    "topology": "which processes run where",
    "engine": "the target node",
    "server": "the door",
    "speculation": "who drafts, and how drafts are verified",
    "telemetry": "what the processes say",
}
_SEVERAL = frozenset({"server.allowed_hosts"})  # values behind one flag
# Who may reach a service, and other machines: of no use to one that serves a single command.
_DOOR = frozenset(
    {
        "server.host", "server.api_key_file", "server.max_requests_per_key", "server.tls_cert",
        "server.tls_key", "server.insecure", "server.allowed_hosts", "topology.nnodes",
        "topology.node_rank", "topology.rendezvous", "topology.spread", "topology.draft_address",
        "topology.rendezvous_timeout_s", "topology.node_timeout_s", "topology.private_network",
    }
)  # fmt: skip


def add_service_options(
    parser: argparse.ArgumentParser,
    other_help: Mapping[str, str] | None = None,
    *,
    is_private: bool = False,
    only: Collection[str] | None = None,
) -> None:
    """Add the flags to `parser`, in a group for each section.

    `other_help` has the text, by flag, of those that mean something else to this command than to
    `launch`. `is_private`: the service is the command's own, and nobody else's. `only`: those of
    these settings alone.
    """
    help_of = other_help or {}
    left_out: frozenset[str] = _DOOR if is_private else frozenset()
    if only is not None:
        left_out = frozenset(name for _, name, *_ in (*_VALUE_FLAGS, *_SWITCHES)) - set(only)
    settings = parser.add_argument_group(
        "service", "Every setting, and when to change it, is in docs/configuration.md."
    )
    settings.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file; flags override it"
    )
    settings.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="a setting by its name in a file, e.g. engine.kv_memory=1GiB; may be repeated",
    )
    for section, title in _SECTIONS.items():
        group = parser.add_argument_group(f"{section}: {title}")  # without flags it is not shown
        for flag, dotted, metavar, text in _of_section(section, _VALUE_FLAGS, left_out):
            number = "+" if dotted in _SEVERAL else None
            told = help_of.get(flag, text)
            group.add_argument(flag, dest=dotted, metavar=metavar, help=told, nargs=number)
        for flag, dotted, text in _of_section(section, _SWITCHES, left_out):
            action = argparse.BooleanOptionalAction
            told = help_of.get(flag, text)
            group.add_argument(flag, dest=dotted, action=action, default=None, help=told)


def _of_section(section: str, flags: Iterable[_Flag], left_out: Collection[str]) -> Iterator[_Flag]:
    """Those of `flags` that are for settings of `section`, without those of `left_out`."""
    for flag in flags:
        if flag[1].partition(".")[0] == section and flag[1] not in left_out:
            yield flag


def flag_of(dotted: str) -> str:
    """The flag of a setting."""
    flags = (*_VALUE_FLAGS, *_SWITCHES)
    return next(flag for flag, name, *_ in flags if name == dotted)


def read_config(arguments: argparse.Namespace) -> Config:
    """File, then flags, then `--set`. Raises InvalidField."""
    return load_config(arguments.config, overrides(arguments))


def overrides(arguments: argparse.Namespace) -> dict[str, str]:
    """What flags and `--set` say, by "section.key"."""
    values = vars(arguments)
    given: dict[str, str] = {}
    for _, dotted, *_ in (*_VALUE_FLAGS, *_SWITCHES):
        value = values.get(dotted)
        if dotted in _SEVERAL and value is not None:
            given[dotted] = ",".join(value)
        elif value is not None:
            given[dotted] = str(value).lower() if isinstance(value, bool) else str(value)
    given.update(parse_override(assignment) for assignment in arguments.assignments)
    return given


def as_typed(arguments: argparse.Namespace) -> list[str]:
    """The flags that were given, with the names that they were given by."""
    values = vars(arguments)
    words = ["--config", str(arguments.config)] if arguments.config else []
    for flag, dotted, *_ in _VALUE_FLAGS:
        if values.get(dotted) is not None:
            words += [flag, values[dotted]]
    for flag, dotted, _ in _SWITCHES:
        if values.get(dotted) is not None:
            words.append(flag if values[dotted] else flag.replace("--", "--no-", 1))
    for assignment in arguments.assignments:
        words += ["--set", assignment]
    return words


def command_line(arguments: argparse.Namespace) -> list[str]:
    """The flags again, for a `specserve launch` started by another command."""
    words = ["--config", str(arguments.config)] if arguments.config else []
    for dotted, value in overrides(arguments).items():
        words += ["--set", f"{dotted}={value}"]
    return words
