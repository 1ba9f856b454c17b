"""Calibration error of a drafter's confidences, raw and calibrated, on prompts no fit has seen.

The same evidence as `specserve calibrate` collects, on other prompts: survival probabilities
against the chance, not the luck, of the drafted tokens.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from bench.domains import ARITHMETIC
from bench.drafter_choice import DrafterChoice
from bench.drafters.plan import Plan
from bench.drafters.results import CalibrationRow
from bench.workload import DOMAINS, read_texts
from draft_node.calibration.collect import Conditions, Samples, collect
from draft_node.calibration.fit import Fitted, figures, mean_ece
from draft_node.calibration.metrics import survivals
from draft_node.calibration.texts import Prompt, write_texts
from draft_node.offline_target import OfflineTarget
from specserve.backends.choose import choose_backend
from specserve.drafters.attach_calibration import confidence_head, listen
from specserve.drafters.load import DrafterOptions, load_drafter
from specserve.drafters.probs_confidence import FeatureRecorder
from specserve.drafters.protocol import Drafter
from specserve.drafters.stored_calibration import Calibration, Evaluation, find_calibration
from specserve.drafters.weights import TargetWeights
from specserve.models.transformer import Transformer
from specserve.sampling.verification.method import VerificationMethod
from specserve.settings.config import DRAFTER_BITS
from specserve.settings.drafter_source import NGRAM

_RESERVE = 48  # positions of a row beyond its text: a block, and a page that is not full
_SEED = 1  # of the texts; calibration's own begin at 0


def calibration_error(
    model: Transformer,
    target: Path,
    choice: DrafterChoice,
    prompts: Mapping[str, Sequence[Sequence[int]]],
    plan: Plan,
) -> CalibrationRow | None:
    """On `prompts`, by domain, but for made-up sums.

    None for a drafter that has neither a confidence head nor a calibration, or without prompts.
    """
    located = choice.located(target)
    chosen = [
        Prompt(domain, tuple(prompt))
        for domain, some in prompts.items()
        if domain != ARITHMETIC
        for prompt in some
    ]
    if located.drafter is None or located.drafter == NGRAM or not chosen:
        return None
    folders = [Path(place) for place in (located.drafter, located.local_head) if place]
    longest = max(len(prompt.token_ids) for prompt in chosen) + plan.calibration_tokens + _RESERVE
    options = DrafterOptions(
        dtype=torch.float32,
        backend=choose_backend(model.embedding.device),
        num_context_tokens=plan.batch_size * longest,
        max_positions=longest,
        local_head=folders[1] if len(folders) > 1 else None,
        gamma=choice.gamma,
        calibrated=False,
        bits=DRAFTER_BITS,
    )
    drafter = load_drafter(folders[0], TargetWeights.of(target, model), options)
    found = find_calibration(folders, target)
    if found is None and confidence_head(drafter) is None:
        return None
    layers = drafter.features.layers if drafter.features is not None else ()
    offline = OfflineTarget(model, num_tokens=plan.batch_size * longest, layers=layers)
    conditions = Conditions(
        method=VerificationMethod.FORESEEABLE
        if found is None
        else VerificationMethod(found.method),
        temperature=1.0 if found is None else found.temperature,
        num_kept=choice.num_kept,
        batch_size=plan.batch_size,
    )
    samples = _collect(offline, drafter, chosen, conditions, plan)
    return _row(choice.label, samples, found, conditions, plan)


def _collect(
    offline: OfflineTarget,
    drafter: Drafter,
    prompts: Sequence[Prompt],
    conditions: Conditions,
    plan: Plan,
) -> Samples:
    recorder = None
    if confidence_head(drafter) is None:
        recorder = FeatureRecorder()
        listen(drafter, recorder)
    texts = write_texts(
        offline,
        prompts,
        num_tokens=plan.calibration_tokens,
        temperature=conditions.temperature,
        seed=_SEED,
        batch_size=conditions.batch_size,
    )
    return collect(offline, drafter, texts, conditions, recorder=recorder)


def _row(
    label: str,
    samples: Samples,
    found: Calibration | None,
    conditions: Conditions,
    plan: Plan,
) -> CalibrationRow:
    before = figures(survivals(samples.logits), samples)
    after = []
    if found is not None:
        fitted = Fitted(np.array(found.temperatures), found.confidence_model)
        after = figures(fitted.survivals(samples), samples)
    return CalibrationRow(
        drafter=label,
        temperature=conditions.temperature,
        method=conditions.method,
        num_prompts=len(set(samples.texts.tolist())),
        num_blocks=len(samples.texts),
        evaluation=Evaluation(before=before, after=after),
        ece_before=mean_ece(before),
        ece_after=mean_ece(after) if after else None,
        unseen=found is None or _is_unseen(found, plan),
    )


def _is_unseen(found: Calibration, plan: Plan) -> bool:
    """Whether the prompts here, from the end, can meet those of a fit, from the front.

    Prompts that others measure with are nobody's to fit.
    """
    if not plan.domains:
        return True
    per_domain = -(-found.num_texts // len(DOMAINS))
    return all(per_domain + plan.num_prompts <= len(read_texts(domain)) for domain in DOMAINS)
