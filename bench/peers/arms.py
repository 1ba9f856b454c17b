# pyright: strict
"""Who takes part: every engine, kind of weights and way of decoding."""

from bench.peers.environments import LLAMA_CPP, TRANSFORMERS, VLLM
from bench.peers.plan import Plan
from bench.peers.records import Arm
from bench.peers.starting import ASSISTED, ASYNC, AUTO, DRAFT, NGRAM, PLAIN, SPECSERVE, SYNC
from bench.peers.weights import BFLOAT16, FLOAT16

PEERS = (SPECSERVE, LLAMA_CPP, VLLM, TRANSFORMERS)
MODES = (PLAIN, SYNC, ASYNC, AUTO, NGRAM, DRAFT, ASSISTED)
_ALWAYS = (
    (SPECSERVE, PLAIN),
    (SPECSERVE, SYNC),
    (SPECSERVE, ASYNC),
    (SPECSERVE, AUTO),
    (LLAMA_CPP, PLAIN),
    (LLAMA_CPP, NGRAM),
    (LLAMA_CPP, DRAFT),
    (VLLM, PLAIN),
    (VLLM, NGRAM),
    (TRANSFORMERS, PLAIN),
    (TRANSFORMERS, ASSISTED),
)


def arms(plan: Plan, threads: int, quantised: str | None) -> list[Arm]:
    """Those that the plan wants on so many cores.

    `quantised`: in what most of the model's own file is, None for a target that is no GGUF file.
    """
    listed = [(peer, mode, BFLOAT16) for peer, mode in _ALWAYS]
    if quantised is not None:
        listed += [
            (SPECSERVE, PLAIN, FLOAT16),  # as it is launched without a flag
            (LLAMA_CPP, PLAIN, FLOAT16),
            (LLAMA_CPP, PLAIN, quantised),
            (LLAMA_CPP, NGRAM, quantised),
        ]
    return [
        Arm(peer=peer, mode=mode, weights=weights, threads=threads)
        for peer, mode, weights in listed
        if peer in (plan.peers or PEERS) and mode in (plan.modes or MODES)
    ]


def can_answer(arm: Arm, num_requests: int) -> bool:
    """transformers refuses to assist a batch."""
    return arm.mode != ASSISTED or num_requests == 1


def reference(threads: int) -> Arm:
    """What the others are compared with: plain decoding of ours, in 16 bits."""
    return Arm(peer=SPECSERVE, mode=PLAIN, weights=BFLOAT16, threads=threads)
