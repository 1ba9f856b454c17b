# pyright: strict
"""How each engine is started: the flags that give all of them the same work.

What speculation an engine has by flags of its own is used as its documentation shows it; nothing is
tuned, ours included. None may find earlier prompts in a cache.
"""

import asyncio
import glob
import socket
from collections.abc import Collection, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.engines import (
    Child,
    Engine,
    WorkerEngine,
    http_engine,
    service_engine,
    worker_reply,
)
from bench.peers.environments import LLAMA_CPP, TRANSFORMERS, VLLM, Environment
from bench.peers.http_client import CompletionsClient
from bench.peers.records import Arm
from bench.peers.weights import BFLOAT16, FLOAT16, Weights
from specserve.errors import Unsupported

SPECSERVE = "specserve"
PLAIN, SYNC, ASYNC, AUTO = "plain", "sync", "async", "auto"
NGRAM, DRAFT, ASSISTED = "ngram", "draft", "assisted"
_OUR_MODES = {PLAIN: "off", SYNC: "sync", ASYNC: "async", AUTO: "auto"}
_KV_MEMORY = "512MiB"
_KV_GIB = "1"  # vLLM counts whole ones
_MODEL_NAME = "model"  # of vLLM's server, which wants one in every request
_LOOKUP = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'
# vLLM's documentation asks for both to be preloaded; the second is a package of Debian's.
_OPENMP, _TCMALLOC = "lib/libiomp5.so", "/usr/lib/*/libtcmalloc_minimal.so.4"
_WORKER = Path(__file__).with_name("transformers_worker.py")


@dataclass(frozen=True)
class Setup:
    """What every engine of a run is started for."""

    weights: Weights
    envs: Path
    drafter: str | None  # of specserve; None: what comes with the target
    most_requests: int
    context: int  # tokens of the longest prompt and its answer
    logs: Path
    runner: asyncio.Runner

    def environment(self, peer: str) -> Environment:
        return Environment(peer, self.envs)

    def log(self, arm: Arm) -> Path:
        return self.logs / f"{arm.name.replace(' ', '-')}-{arm.threads}.log"


def start(setup: Setup, arm: Arm, cores: Collection[int]) -> AbstractContextManager[Engine]:
    """The engine of `arm` on `cores`, ready when it is entered.

    Raises Unsupported, when it is entered, for an absent peer, and Failed for one that does not
    start.
    """
    starts = {
        SPECSERVE: _specserve,
        LLAMA_CPP: _llama_cpp,
        VLLM: _vllm,
        TRANSFORMERS: _transformers,
    }
    return starts[arm.peer](setup, arm, cores)


@contextmanager
def _specserve(setup: Setup, arm: Arm, cores: Collection[int]) -> Generator[Engine]:
    """A draft process takes one of the cores, the target the others."""
    has_draft = arm.threads > 1 and arm.mode in (ASYNC, AUTO)
    if arm.mode == ASYNC and not has_draft:
        raise Unsupported("a draft process needs a core of its own")
    flags = ["--target", str(setup.weights.model), "--speculation", _OUR_MODES[arm.mode]]
    flags += ["--kv-memory", _KV_MEMORY, "--generation-config", "none"]
    flags += ["--max-batch-rows", str(setup.most_requests)]
    # By default the file's weights are kept in float16, and arithmetic is in float32.
    flags += [] if arm.weights == FLOAT16 else ["--dtype", arm.weights]
    flags += ["--threads", str(arm.threads - has_draft)]
    flags += ["--topology", "1+1"] if has_draft else []
    if setup.drafter is not None and arm.mode != PLAIN:
        flags += ["--drafter", setup.drafter]
    with service_engine(setup.runner, flags, cores, has_draft=has_draft) as engine:
        yield engine


@contextmanager
def _llama_cpp(setup: Setup, arm: Arm, cores: Collection[int]) -> Generator[Engine]:
    environment = setup.environment(LLAMA_CPP)
    environment.versions()
    dtype = arm.weights if arm.weights in (BFLOAT16, FLOAT16) else None
    port, threads = _free_port(), str(arm.threads)
    words = [str(environment.llama_server), "--model", str(setup.weights.gguf_file(dtype))]
    words += ["--host", "127.0.0.1", "--port", str(port), "--no-ui"]
    words += ["--threads", threads, "--threads-batch", threads]
    words += ["--parallel", str(setup.most_requests), "--kv-unified"]
    words += ["--ctx-size", str(setup.most_requests * setup.context), "--cache-ram", "0"]
    if arm.mode == NGRAM:
        words += ["--spec-type", "ngram-simple"]
    if arm.mode == DRAFT:  # the file itself drafts for its 16-bit form
        words += ["--spec-type", "draft-simple", "--model-draft", str(setup.weights.gguf_file())]
        words += ["--spec-draft-threads", threads]
    child = Child(words, {"OMP_NUM_THREADS": threads}, cores, setup.log(arm))
    client = CompletionsClient(port, {"cache_prompt": False})
    with http_engine(setup.runner, client, child) as engine:
        yield engine


@contextmanager
def _vllm(setup: Setup, arm: Arm, cores: Collection[int]) -> Generator[Engine]:
    """By its server's module: the `vllm` command wants a distribution of that very name."""
    own = setup.environment(VLLM)
    own.versions()
    port = _free_port()
    words = [str(own.python), "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--model", str(setup.weights.folder()), "--served-model-name", _MODEL_NAME]
    words += ["--dtype", arm.weights, "--host", "127.0.0.1", "--port", str(port)]
    words += ["--max-num-seqs", str(setup.most_requests), "--max-model-len", str(setup.context)]
    words += ["--no-enable-prefix-caching", "--generation-config", "vllm"]
    if arm.mode == NGRAM:
        words += ["--speculative-config", _LOOKUP]
    environment = {
        "OMP_NUM_THREADS": str(arm.threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # it has the cores that it was given
        "VLLM_CPU_KVCACHE_SPACE": _KV_GIB,
        "VLLM_CACHE_ROOT": str(own.cache),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": ":".join(preloaded_with_vllm(own)),
    }
    child = Child(words, environment, cores, setup.log(arm))
    client = CompletionsClient(port, {"model": _MODEL_NAME})
    with http_engine(setup.runner, client, child) as engine:
        yield engine


def preloaded_with_vllm(own: Environment) -> list[str]:
    """Libraries that are there, of those that its documentation asks for."""
    openmp = str(own.python.parent.parent / _OPENMP)
    return sorted(glob.glob(openmp)) + sorted(glob.glob(_TCMALLOC))


@contextmanager
def _transformers(setup: Setup, arm: Arm, cores: Collection[int]) -> Generator[Engine]:
    own = setup.environment(TRANSFORMERS)
    own.versions()
    words = [str(own.python), str(_WORKER)]
    environment = {"OMP_NUM_THREADS": str(arm.threads), "HF_HUB_OFFLINE": "1"}
    child = Child(words, environment, cores, setup.log(arm), is_worker=True)
    try:
        model = {"folder": str(setup.weights.folder()), "threads": arm.threads}
        worker_reply(child, model)
        yield WorkerEngine(child, is_assisted=arm.mode == ASSISTED)
    finally:
        child.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
