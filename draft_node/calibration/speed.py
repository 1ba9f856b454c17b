"""How fast a drafter is on this machine: synchronous speculation against plain decoding.

Two services answer the same prompts in turns, one request at a time and under the same seeds, so
that what disturbs the machine meets both. A service with a drafter is no measure of plain decoding:
it keeps features and decides about drafts for requests that want none, too.
"""

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec
import numpy as np
from rich.console import Console

from draft_node.calibration.texts import Prompt, held_out_requests, read_prompts
from draft_node.training.progress import shown, underway
from specserve.client import Client
from specserve.commands.calibrate import Job
from specserve.errors import Failed, InvalidField, Unsupported
from specserve.models.config import read_spec
from specserve.processes.launch import resolve_here
from specserve.processes.local_service import local_service
from specserve.settings.config import ResolvedConfig, load_config
from specserve.settings.hardware import probe
from specserve.settings.speed_files import Asked, SpeedFile, SpeedRecord

_MOST_TOKENS = 48  # of an answer
_KV_MEMORY = "1GiB"  # of each service on CUDA, where the first would take all there is
_OF_BOTH = ("model.target", "model.generation_config", "topology.device", "engine.kv_memory")
_NUM_RESAMPLES, _LEVEL = 4000, 0.95


@dataclass(frozen=True)
class Answer:
    """What a service made of a prompt, and how long it decoded behind the first token."""

    token_ids: list[int]
    decode_s: float


@dataclass(frozen=True)
class Ratio:
    """Of two speeds, with the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def measure_speed(job: Job, results: Console) -> SpeedRecord:
    """Time the drafter as a launch would run it, keep the figure for this machine and print it.

    Raises `SpecserveError`; `Failed` where speculation has changed a text that it must not change.
    """
    settings = _settings(job)
    config = resolve_here(load_config(None, settings))
    prompts = chosen_prompts(job, config)
    asked = Asked(
        temperature=job.temperature, num_tokens=_num_tokens(job), prompts=_hash_of(prompts)
    )
    # Before the services start: a drafter that changes meanwhile is not what was measured.
    file = SpeedFile(
        config, asked, probe(),
        drafter=str(job.drafter),
        local_head=None if job.local_head is None else str(job.local_head),
    )  # fmt: skip
    plain, drafted = _answers(job, settings, prompts)
    remark = differences(plain, drafted, must_be_equal=config.engine.deterministic is True)
    ratio = speed_ratio(plain, drafted)
    record = SpeedRecord(
        made_for=file.made_for,
        drafter=file.drafter,
        local_head=file.local_head,
        asked=asked,
        num_pairs=len(prompts),
        **{name: round(getattr(ratio, name), 4) for name in ("value", "low", "high")},
    )
    file.write(record)
    results.print(
        f"{record.figure} times as fast as plain decoding on this machine (one request, "
        f"temperature {job.temperature:g}, {len(prompts)} pairs)",
        soft_wrap=True,
        markup=False,
    )
    if remark is not None:
        results.print(remark, soft_wrap=True)
    return record


def speed_ratio(plain: Sequence[Answer], drafted: Sequence[Answer]) -> Ratio:
    """Tokens a second over all answers, with speculation over without; prompts are drawn again.

    Raises `Unsupported` where no answer is longer than its first token.
    """
    speeds = []
    draws = np.random.default_rng(0).multinomial(
        len(plain), np.full(len(plain), 1 / len(plain)), size=_NUM_RESAMPLES
    )  # [R, N]; the same figures from the same measurements
    for answers in (drafted, plain):
        tokens = np.array([max(0, len(answer.token_ids) - 1) for answer in answers], dtype=float)
        seconds = np.array([answer.decode_s for answer in answers])
        if not tokens.sum():
            raise Unsupported("the target ended every answer at once: there is nothing to time")
        with np.errstate(divide="ignore", invalid="ignore"):  # a draw of empty answers alone
            speeds.append((tokens.sum() / seconds.sum(), (draws @ tokens) / (draws @ seconds)))
    (speed, speed_drawn), (plain_speed, plain_drawn) = speeds
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = speed_drawn / plain_drawn
    tail = (1 - _LEVEL) / 2
    low, high = np.quantile(drawn[np.isfinite(drawn) & (drawn > 0)], (tail, 1 - tail))
    return Ratio(float(speed / plain_speed), float(low), float(high))


def _settings(job: Job) -> dict[str, str]:
    """Of the service that drafts, by "section.key"; all that is not here is as usual."""
    device = job.device.partition(":")[0]
    settings = {
        "model.target": str(job.target),
        "model.generation_config": "none",  # as the calibrated texts were sampled
        "topology.device": device,
        "speculation.mode": "sync",
        "speculation.drafter": str(job.drafter),
    }
    if job.local_head is not None:
        settings["speculation.local_head"] = str(job.local_head)
    if device == "cuda":
        settings["engine.kv_memory"] = _KV_MEMORY
    return settings


def _num_tokens(job: Job) -> int:
    return min(job.num_tokens, _MOST_TOKENS)


def chosen_prompts(job: Job, config: ResolvedConfig) -> list[Prompt]:
    """Some of those that were calibrated on."""
    max_len = (config.model.max_model_len or 0) - _num_tokens(job) - 1
    if max_len < 1:
        raise InvalidField("--num-tokens", f"{_num_tokens(job)} leave no room for a prompt")
    count = min(job.speed_prompts, job.num_prompts)
    if job.data is None:
        return read_prompts(job.prompts, job.target, count, max_len)
    vocab_size = read_spec(job.target).vocab_size
    requests = held_out_requests(job.data, job.num_prompts, max_len, vocab_size)
    return [requests[place * len(requests) // count] for place in range(count)]


def _hash_of(prompts: Sequence[Prompt]) -> str:
    token_ids = msgspec.json.encode([prompt.token_ids for prompt in prompts])
    return hashlib.sha256(token_ids).hexdigest()[:16]


def _answers(
    job: Job, settings: dict[str, str], prompts: Sequence[Prompt]
) -> tuple[list[Answer], list[Answer]]:
    """Of plain decoding and of speculation, for each prompt; a first pair is not counted."""
    undrafted = {key: value for key, value in settings.items() if key in _OF_BOTH}
    with ExitStack() as stack:
        with underway("starting two services, without and with the drafter"):
            addresses = [
                stack.enter_context(local_service(_flags(each)))
                for each in ({**undrafted, "speculation.mode": "off"}, settings)
            ]
        clients = [stack.enter_context(Client(address)) for address in addresses]
        advance = stack.enter_context(shown("timing pairs of answers", len(prompts) + 1))
        answers: tuple[list[Answer], list[Answer]] = ([], [])
        for number, prompt in enumerate([prompts[0], *prompts]):
            for arm in (0, 1) if number % 2 else (1, 0):
                answers[arm].append(_answer(clients[arm], prompt, job, job.seed + number))
            advance(1)
    return answers[0][1:], answers[1][1:]


def _flags(settings: dict[str, str]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def _answer(client: Client, prompt: Prompt, job: Job, seed: int) -> Answer:
    answer = client.generate(
        prompt.token_ids, temperature=job.temperature, max_tokens=_num_tokens(job), seed=seed
    )
    return Answer(answer.samples[0].token_ids, answer.timings.decode_s)


def differences(
    plain: Sequence[Answer], drafted: Sequence[Answer], *, must_be_equal: bool
) -> str | None:
    """What to tell people of texts that speculation has changed; raises `Failed` if none may be."""
    differing = [
        number
        for number, (one, other) in enumerate(zip(plain, drafted, strict=True), start=1)
        if one.token_ids != other.token_ids
    ]
    if not differing:
        return None
    what = (
        f"{len(differing)} of {len(plain)} answers differ between plain decoding and speculation "
        f"(the first is number {differing[0]})"
    )
    if must_be_equal:
        raise Failed(f"{what}, and none may: nothing is kept of their speed; specserve audit "
                     "says more")  # fmt: skip
    return f"{what}: arithmetic here depends on the batch (--deterministic is without that)"
