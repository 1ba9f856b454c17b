# pyright: strict
"""Whether a draft process is in time on the target's own GPU, by turns and side by side (MPS).

    python -m bench.gpu.side_by_side --ballast 8B
    python -m bench.gpu.side_by_side --dry

One service after the other answers the same prompts, greedily and one at a time, so that nothing
but the one that is asked has work: plain decoding, drafts beside the target, a draft process that
takes turns with it (`--no-mps`), and one whose kernels run beside it (`--mps`). Each leaves a line
of JSON; one that does not start leaves the reason. `--dry` tries every step on a CPU with the tiny
model, where there are no turns: the last two are one.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bench.prompt_files import read_prompt_file
from bench.writing import show_failure
from specserve.client import ChatMessage, Client
from specserve.errors import SpecserveError, Unavailable
from specserve.processes.local_service import local_service

_NAME = "bench.gpu.side_by_side"
_PROMPTS = Path(__file__).parents[1] / "prompts" / "standard.jsonl"
_PAIR = ("--topology", "1+1", "--oversubscribe", "--speculation", "async")
SERVICES: dict[str, tuple[str, ...]] = {
    "plain": ("--speculation", "off"),
    "beside the target": ("--speculation", "sync"),
    "by turns": (*_PAIR, "--no-mps"),
    "side by side": (*_PAIR, "--mps"),
}
_ON_GPU = ("--device", "cuda", "--dtype", "bfloat16")
_DRY = ("--device", "cpu", "--target", "tiny")
_CPU_LACKS = ("--mps",)
_ATTACH_S = 60.0
_LOOK_S = 0.1


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Of one service."""

    name: str
    flags: list[str]
    tokens_per_s: float = 0.0  # of all answers, from the first to the last token of each
    num_tokens: int = 0
    num_lookups: int = 0  # rows for whose outcome a block may have been prepared
    num_hits: int = 0  # and was there in time
    num_draft_batches: int = 0
    num_late_draft_batches: int = 0
    forward_ms: float = 0.0  # of a round that decodes, drafts not included
    draft_batch_ms: float = 0.0
    why_not: str = ""  # nothing was measured


def measure(
    flags: Sequence[str], hear: Callable[[Found], None], *, num_prompts: int, num_tokens: int
) -> None:
    """Start, ask and stop every service with these flags; `hear` is told of each as it ends."""
    questions = _questions(num_prompts)
    for name, own in SERVICES.items():
        words = [*flags, *(word for word in own if "cuda" in flags or word not in _CPU_LACKS)]
        try:
            with local_service(words) as address, Client(address) as client:
                hear(_asked(client, name, words, questions, num_tokens))
        except SpecserveError as error:
            hear(Found(name=name, flags=words, why_not=str(error)))


def _questions(count: int) -> list[list[ChatMessage]]:
    records = read_prompt_file(_PROMPTS).records[:count]
    return [[ChatMessage("user", record.turns[0])] for record in records]


def _asked(
    client: Client,
    name: str,
    flags: list[str],
    questions: Sequence[list[ChatMessage]],
    num_tokens: int,
) -> Found:
    if "async" in flags:
        _await_draft(client)
    for question in questions[:2]:  # what is captured and measured at first is not what is served
        client.generate(question, max_tokens=num_tokens, temperature=0, ignore_eos=True)
    before = client.spec_stats()
    seconds, count = 0.0, 0
    for question in questions:
        times = [
            time.perf_counter()
            for delta in client.stream(
                question, max_tokens=num_tokens, temperature=0, ignore_eos=True
            )
            if delta.token_ids
        ]
        seconds += times[-1] - times[0]
        count += num_tokens
    after = client.spec_stats()
    rounds = max(1, after.num_decode_rounds - before.num_decode_rounds)
    batches = after.num_waves - before.num_waves
    return Found(
        name=name,
        flags=flags,
        tokens_per_s=count / seconds if seconds else 0.0,
        num_tokens=count,
        num_lookups=after.num_lookups - before.num_lookups,
        num_hits=after.num_hits - before.num_hits,
        num_draft_batches=batches,
        num_late_draft_batches=after.num_late_waves - before.num_late_waves,
        forward_ms=1e3 * (after.forward_s - before.forward_s) / rounds,
        draft_batch_ms=1e3 * (after.wave_s - before.wave_s) / max(1, batches),
    )


def _await_draft(client: Client) -> None:
    deadline_s = time.monotonic() + _ATTACH_S
    while not client.load().num_drafts_attached:
        if time.monotonic() > deadline_s:
            raise Unavailable(f"no draft process is there after {_ATTACH_S:g} s")
        time.sleep(_LOOK_S)


def main(words: Sequence[str] | None = None) -> int:
    """0, or 2 for arguments that cannot be."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {_NAME}", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--target", help="default: what a launch serves")
    parser.add_argument("--ballast", help="pad the target to this cost, e.g. 8B")
    parser.add_argument("--drafter", help="default: the embedded one")
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--out", type=Path, help="a file that the lines are added to, as well")
    parser.add_argument("--dry", action="store_true", help="every step, on a CPU")
    given = parser.parse_args(words)
    flags = list(_DRY if given.dry else _ON_GPU)
    for name in ("target", "ballast", "drafter"):
        if getattr(given, name) is not None:
            flags += [f"--{name}", getattr(given, name)]

    def hear(found: Found) -> None:
        line = msgspec.json.encode(found).decode() + "\n"
        sys.stdout.write(line)
        sys.stdout.flush()
        if given.out is not None:
            with given.out.open("a", encoding="utf-8") as file:
                file.write(line)

    num_prompts, num_tokens = (2, 8) if given.dry else (given.num_prompts, given.max_tokens)
    try:
        measure(flags, hear, num_prompts=num_prompts, num_tokens=num_tokens)
    except (SpecserveError, OSError) as error:
        show_failure(_NAME, error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
