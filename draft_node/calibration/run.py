"""One calibration from job to file: the target writes, the drafter drafts, half of it is fitted.

And the summary of it as people read it.
"""

import logging
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from draft_node.calibration import plot
from draft_node.calibration.collect import Conditions, Samples, collect, count_anchors
from draft_node.calibration.fit import figures, fit, fitted_half, mean_ece
from draft_node.calibration.metrics import survivals
from draft_node.calibration.texts import (
    Prompt,
    Text,
    held_out_requests,
    name_of_prompts,
    read_prompts,
    write_texts,
)
from draft_node.offline_target import OfflineTarget
from draft_node.training.export import CHECKSUMS, write_checksums
from draft_node.training.progress import shown, underway
from specserve.backends.choose import choose_backend
from specserve.commands.calibrate import Job
from specserve.drafters.attach_calibration import confidence_head, listen
from specserve.drafters.load import DrafterOptions, load_drafter
from specserve.drafters.probs_confidence import FeatureRecorder
from specserve.drafters.protocol import Drafter
from specserve.drafters.stored_calibration import (
    Calibration,
    Evaluation,
    PositionFigures,
    weights_hash,
    write_calibration,
)
from specserve.drafters.usual_acceptance import GREEDY
from specserve.drafters.weights import TargetWeights
from specserve.errors import InvalidField, Unsupported
from specserve.models.config import read_spec
from specserve.models.loader import load_model
from specserve.models.parallel import TensorParallel
from specserve.models.transformer import Transformer
from specserve.sampling.verification.method import VerificationMethod
from specserve.settings.config import DRAFTER_BITS

log = logging.getLogger(__name__)

_BATCH_SIZE = 16  # texts side by side
# Positions of a row beyond its text: a block, and a page that is not full.
_BLOCK, _PAGE = 32, 16
_FEWER = 4  # times fewer prompts tell acceptance at the temperature that is not calibrated
_MOST_GAMMA = 64  # of drafters without one of their own; as many as `speculation.gamma` may be


def calibrate(job: Job, results: Console) -> Calibration:
    """Collect, fit, evaluate; write the calibration, the diagram and a table to `results`.

    Raises `SpecserveError` for what cannot be calibrated.
    """
    if job.plot is not None and not plot.can_draw():
        raise Unsupported(f"--plot: {plot.MISSING}")
    texts, samples, acceptance = _measure(job)
    half = fitted_half(texts)
    seen, unseen = samples.of_texts(half), samples.of_texts(~half)
    if not len(seen.texts) or not len(unseen.texts):
        raise Unsupported("the target ended too many texts at once: one half has no block")
    fitted = fit(seen)
    before, after = survivals(unseen.logits), fitted.survivals(unseen)
    drafter = [job.drafter] if job.local_head is None else [job.drafter, job.local_head]
    calibration = Calibration(
        drafter_hash=weights_hash(drafter),
        target_hash=weights_hash([job.target]),
        method=job.verification,
        temperature=job.temperature,
        num_texts=len(texts),
        num_blocks=len(seen.texts),
        temperatures=[round(float(t), 4) for t in fitted.temperatures],
        confidence_model=fitted.confidence_model,
        evaluation=Evaluation(before=figures(before, unseen), after=figures(after, unseen)),
        acceptance=acceptance,
        asked=name_of_prompts(job.data or job.prompts),
    )
    path = write_calibration(job.out, calibration)
    results.print(summary_table(calibration))
    results.print(f"accept length {unseen.accept_len:.2f}; {path}", soft_wrap=True)
    if plot.can_draw():
        picture = job.plot or job.out / "reliability.png"
        panels = {"before": before, "after": after}
        plot.draw_reliability(picture, unseen, panels, f"temperature {job.temperature:g}")
        results.print(f"reliability diagram: {picture}", soft_wrap=True)
    else:
        log.warning(plot.MISSING)
    if (job.out / CHECKSUMS).is_file():  # the folder of a drafter of ours: its list stays complete
        write_checksums(job.out)
    return calibration


@dataclass(frozen=True)
class _Pair:
    """A drafter and its target, ready to be measured; `recorder` listens where no head speaks."""

    target: OfflineTarget
    drafter: Drafter
    recorder: FeatureRecorder | None


def _measure(job: Job) -> tuple[list[Text], Samples, dict[str, list[float]]]:
    """The target's texts, the drafter along them, and `Calibration.acceptance`."""
    with underway("reading the target and the drafter"):
        prompts, pair = _prepared(job)
    texts, samples = _look(job, pair, prompts, job.temperature)
    # What else a service is asked for: drawn texts, or the likeliest ones.
    other = 1.0 if job.temperature == 0 else 0.0
    fewer = prompts[:: -(-len(prompts) // max(2, len(prompts) // _FEWER))]
    _, others = _look(job, pair, fewer, other)
    seen = {job.temperature: samples, other: others}
    return texts, samples, {_kind(job, t): each.mean_survivals for t, each in seen.items()}


def _prepared(job: Job) -> tuple[list[Prompt], _Pair]:
    """What is asked, and who answers and drafts."""
    room = job.num_tokens + max(_BLOCK, min(job.gamma or 0, _MOST_GAMMA)) + _PAGE
    spec = read_spec(job.target)
    max_len = spec.max_position_embeddings - room
    if max_len < 1:
        raise InvalidField("--num-tokens", f"{job.num_tokens} leave no room for a prompt")
    # Before weights are read, which takes longer than to find that these are no prompts.
    if job.data is None:
        prompts = read_prompts(job.prompts, job.target, job.num_prompts, max_len)
    else:
        prompts = held_out_requests(job.data, job.num_prompts, max_len, spec.vocab_size)
    longest = max(len(prompt.token_ids) for prompt in prompts) + room
    return prompts, _load_pair(job, _load_target(job), longest)


def _kind(job: Job, temperature: float) -> str:
    return GREEDY if temperature == 0 else job.verification


def _look(
    job: Job, pair: _Pair, prompts: list[Prompt], temperature: float
) -> tuple[list[Text], Samples]:
    """Texts of one temperature, and the drafter along them."""
    conditions = Conditions(
        method=VerificationMethod(job.verification),
        temperature=temperature,
        num_kept=job.num_kept,
        stride=job.stride,
        batch_size=_BATCH_SIZE,
    )
    what = f"at temperature {temperature:g}"
    with shown(f"writing texts {what}", job.num_tokens * len(prompts)) as advance:
        texts = write_texts(
            pair.target,
            prompts,
            num_tokens=job.num_tokens,
            temperature=temperature,
            seed=job.seed,
            batch_size=_BATCH_SIZE,
            advance=advance,
        )
    with shown(f"drafting blocks {what}", count_anchors(texts, job.stride)) as advance:
        samples = collect(
            pair.target, pair.drafter, texts, conditions, recorder=pair.recorder, advance=advance
        )
    return texts, samples


def _load_target(job: Job) -> Transformer:
    try:
        torch.empty(0, device=job.device)
    except (RuntimeError, AssertionError) as error:
        problem = str(error).partition("\n")[0]
        raise InvalidField("--device", f"{job.device}: {problem}") from error
    # Float32: on most CPUs anything else is slower by far, and what is measured is probabilities.
    return load_model(
        job.target,
        dtype=torch.float32,
        backend=choose_backend(torch.device(job.device)),
        parallel=TensorParallel(),
        deterministic=False,
    )


def _load_pair(job: Job, model: Transformer, longest: int) -> _Pair:
    """With room for texts of `longest` positions, drafts included."""
    options = DrafterOptions(
        dtype=torch.float32,
        backend=choose_backend(torch.device(job.device)),
        num_context_tokens=_BATCH_SIZE * longest,
        max_positions=longest,
        local_head=job.local_head,
        gamma=job.gamma,
        calibrated=False,
        bits=DRAFTER_BITS,
    )
    weights = TargetWeights(job.target, read_spec(job.target), model)
    drafter = load_drafter(job.drafter, weights, options)
    most = min(drafter.gamma, _MOST_GAMMA)
    if job.gamma is not None and job.gamma > most:
        raise InvalidField("--gamma", f"{job.gamma}: the drafter drafts at most {most} tokens")
    recorder = None
    if confidence_head(drafter) is None:
        recorder = FeatureRecorder()
        listen(drafter, recorder)
    layers = drafter.features.layers if drafter.features is not None else ()
    target = OfflineTarget(model, num_tokens=_BATCH_SIZE * longest, layers=layers)
    return _Pair(target, drafter, recorder)


def summary_table(calibration: Calibration) -> Table:
    """Figures before and after by position, of the texts that were not fitted."""
    evaluation = calibration.evaluation
    table = Table(box=None, pad_edge=False, header_style="bold")
    headings = ("position", "blocks", "survival", "T")
    for heading in (*headings, "ECE", "after", "AUROC", "after", "Brier", "after"):
        table.add_column(heading, justify="right")
    for k, (old, new) in enumerate(zip(evaluation.before, evaluation.after, strict=True)):
        table.add_row(
            str(k + 1), str(old.num_samples), f"{old.mean_target:.3f}",
            f"{calibration.temperatures[k]:.2f}", f"{old.ece:.2%}", f"{new.ece:.2%}",
            _auroc(old), _auroc(new), f"{old.brier:.4f}", f"{new.brier:.4f}",
        )  # fmt: skip
    means = (f"{mean_ece(side):.2%}" for side in (evaluation.before, evaluation.after))
    table.add_row("mean", "", "", "", *means)
    return table


def _auroc(figures: PositionFigures) -> str:
    return "-" if figures.auroc is None else f"{figures.auroc:.3f}"
