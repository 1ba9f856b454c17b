"""What others make of the same shapes: transformers with a static cache, and compiled."""

import gc
import importlib.util
import statistics
from itertools import pairwise
from typing import Any

import torch

from bench.gpu.records import Fact, Left, Report
from bench.gpu.scale import Given
from bench.gpu.shapes import DTYPE, Shape

_PROMPT_LEN = 512


def measure(given: Given, report: Report) -> None:
    """Every shape while there is time; what compiles comes behind the rest."""
    scale = given.scale
    if importlib.util.find_spec("transformers") is None:
        report(Left(what="transformers", why="it is not installed"))
        return
    model, of = None, None
    for is_compiled in (False, True):
        for shape, rows in scale.baselines:
            how = "compiled" if is_compiled else "not compiled"
            what = f"transformers, static cache, {how}: {shape.name}, {rows} rows"
            if given.is_over:
                report(Left(what=what, why="no time was left"))
                continue
            try:
                if of != shape:
                    model = None  # first, for both would not fit
                    model, of = _load(shape, scale.device), shape
                seconds = _step_s(model, shape, rows, scale.baseline_tokens, is_compiled)
            except (RuntimeError, ValueError, TypeError) as error:  # its own, and the compiler's
                report(Left(what=what, why=f"{type(error).__name__}: {str(error)[:160]}"))
                continue
            report(Fact(what=what, value=1000 * seconds, unit="ms a step"))


def _load(shape: Shape, device: str) -> Any:  # noqa: ANN401 - transformers types its models loosely
    """Its own model with random weights."""
    import transformers

    gc.collect()  # the model before
    if device == "cuda":
        torch.cuda.empty_cache()
    transformers.utils.logging.set_verbosity_error()
    settings = {name: value for name, value in shape.share.items() if name != "model_type"}
    config = transformers.AutoConfig.for_model(shape.share["model_type"], **settings)
    with torch.device(device):
        model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=DTYPE)
    model.generation_config.eos_token_id = None  # nothing ends an answer early
    return model.eval()


def _step_s(model: Any, shape: Shape, rows: int, num_tokens: int, is_compiled: bool) -> float:  # noqa: ANN401
    """Median seconds between two tokens of all rows; of the second call, for the first compiles."""
    from bench.reference import Arrivals

    shorter = min(_PROMPT_LEN, shape.spec.max_position_embeddings // 2)
    prompts = torch.randint(shape.spec.vocab_size, (rows, shorter), device=model.device)
    times_s: list[float] = []
    for _ in range(2):
        arrivals = Arrivals()
        model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=num_tokens,
            do_sample=False,
            streamer=arrivals,
            pad_token_id=0,
            cache_implementation="static",
            disable_compile=not is_compiled,
        )
        # The first call brings the prompts, the second what they gave.
        times_s = arrivals.times_s[2:]
    return statistics.median(later - earlier for earlier, later in pairwise(times_s))
