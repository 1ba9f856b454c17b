"""What a gateway is told of a worker: its model, its state, its load.

Nothing names a path of this machine: a gateway gets the tokenizer as `GetTokenizer` sends it.
"""

import json
import time
from datetime import UTC, datetime

import msgspec
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from specserve import __version__
from specserve.api.figures import figures_of
from specserve.api.service import Service
from specserve.errors import InvalidField
from specserve.models.config import ARCHITECTURES
from specserve.types import SamplingParams

_SERVER_TYPE = "vllm-grpc"  # of the protocol, not of the engine behind it
_WISHES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_WELL = ("ready", "degraded")


def health_of(service: Service) -> pb.HealthCheckResponse:
    """Whether requests are taken, and in which state the service is."""
    return pb.HealthCheckResponse(healthy=service.state in _WELL, message=service.state)


def model_info_of(service: Service) -> pb.GetModelInfoResponse:
    """Raises Unavailable while there is no model."""
    ready = service.ready
    ours = SamplingParams()
    defaults = msgspec.structs.asdict(service.sampling_defaults)
    wishes = {name: defaults[name] for name in _WISHES if defaults[name] != getattr(ours, name)}
    return pb.GetModelInfoResponse(
        model_path=ready.model,
        served_model_name=ready.model,
        is_generation=True,
        max_context_length=ready.max_model_len,
        max_req_input_len=ready.max_model_len - 1,  # an answer has a token at least
        vocab_size=ready.vocab_size,
        model_type=ready.model_type,
        architectures=[name for name, kind in ARCHITECTURES.items() if kind == ready.model_type],
        eos_token_ids=ready.eos_token_ids,
        default_sampling_params_json=json.dumps(wishes) if wishes else "",
    )


def server_info_of(service: Service) -> pb.GetServerInfoResponse:
    """Raises Unavailable while there is no model."""
    ready, hub = service.ready, service.hub
    silent_s = time.monotonic() - hub.load_s
    return pb.GetServerInfoResponse(
        active_requests=hub.num_in_flight,
        is_paused=service.state not in _WELL,
        last_receive_timestamp=time.time() - silent_s,
        uptime_seconds=time.monotonic() - service.started_s,
        server_type=_SERVER_TYPE,
        data_parallel_size=1,
        kv_cache_dtype=ready.kv_dtype,
        block_size=ready.block_size,
        model_dtype=ready.dtype,
        max_num_seqs=ready.max_batch_rows,
        constrained_decoding_start="first_token",
    )


def loads_of(service: Service, request: pb.GetLoadsRequest) -> pb.GetLoadsResponse:
    """As the target's latest report has it. Raises Unavailable while there is no model.

    Sections besides the core (`include`) are of engines that have them; the protocol has none here.
    """
    if request.HasField("dp_rank") and request.dp_rank != 0:
        raise InvalidField("dp_rank", f"{request.dp_rank} is not served here; 0 is the only one")
    ready, load = service.ready, service.hub.load
    figures = figures_of(service.hub.recent)
    num_used = load.num_blocks - load.num_free_blocks
    rank = pb.SchedulerLoad(
        num_running_reqs=load.num_running,
        num_waiting_reqs=load.num_waiting,
        num_total_reqs=load.num_running + load.num_waiting,
        num_used_tokens=num_used * ready.block_size,
        max_total_num_tokens=load.num_blocks * ready.block_size,
        token_usage=num_used / max(1, load.num_blocks),
        gen_throughput=0.0 if figures is None else figures.generated_tokens_per_s,
        cache_hit_rate=0.0 if figures is None else figures.prefix_hit_rate or 0.0,
        utilization=load.num_running / ready.max_batch_rows,
        max_running_requests=ready.max_batch_rows,
    )
    return pb.GetLoadsResponse(
        timestamp=datetime.now(UTC).isoformat(),
        version=__version__,
        dp_rank_count=1,
        loads=[rank],
    )
