"""The arm to beat: transformers' `generate` on the same folder, in a pinned process of its own.

Library defaults throughout (dynamic cache, SDPA attention). Ballast layers are appended in memory
with the widths that the service uses, since a config.json cannot say that widths differ.
"""

import copy
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.generation.streamers import BaseStreamer

from bench.pinned_child import answer_jobs
from bench.processes import usage
from bench.records import BatchTrace, GenerateJob, Setup
from specserve.models.ballast import with_ballast
from specserve.models.config import read_spec


def load_reference(setup: Setup) -> Any:  # noqa: ANN401 - transformers types its models loosely
    """The model of `setup` in transformers, ready to generate."""
    torch.set_num_threads(setup.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    path, is_file = Path(setup.folder), Path(setup.folder).is_file()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent if is_file else path,
        gguf_file=path.name if is_file else None,
        dtype=getattr(torch, setup.dtype),
    )
    spec = with_ballast(read_spec(Path(setup.folder)), setup.ballast)
    for width in spec.ballast_widths:
        append_ballast_layer(model, width)
    # The service is told to ignore the end of the text; here nothing ends it either.
    model.generation_config.eos_token_id = None
    return model.to(setup.device).eval()


def append_ballast_layer(model: Any, width: int) -> None:  # noqa: ANN401
    """One more layer, random but for output projections of zero: costs, and changes no logit."""
    layers, config = model.model.layers, model.config
    wide = copy.deepcopy(config)
    wide.intermediate_size = width
    wide.num_hidden_layers = len(layers) + 1
    if getattr(config, "layer_types", None):
        wide.layer_types = [*config.layer_types, config.layer_types[-1]]
        config.layer_types = list(wide.layer_types)
    layer = type(layers[0])(wide, len(layers)).to(model.dtype)
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            if weight.dim() == 2:
                bound = (3 / weight.shape[1]) ** 0.5
                weight.uniform_(-bound, bound)
            if name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
                weight.zero_()
    layers.append(layer)
    config.num_hidden_layers = len(layers)


class Arrivals(BaseStreamer):
    """Notes when each step's tokens are known. The first call brings the prompts."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times_s.append(time.perf_counter())

    def end(self) -> None:
        pass


class Reference:
    """Answers a `GenerateJob` with one call of `generate`."""

    def __init__(self, setup: Setup) -> None:
        self._model = load_reference(setup)

    def __call__(self, job: GenerateJob) -> BatchTrace:
        arrivals = Arrivals()
        sampled = job.temperature > 0
        # Off: the default for top_k is 50, and the service samples from the whole vocabulary.
        sampling = {"temperature": job.temperature, "top_k": 0, "top_p": 1.0} if sampled else {}
        before, start_s = usage(), time.perf_counter()
        device = self._model.device
        input_ids, mask = (each.to(device) for each in _left_padded(job.prompts))
        output = self._model.generate(
            input_ids,
            attention_mask=mask,
            max_new_tokens=job.num_tokens,
            do_sample=sampled,
            streamer=arrivals,
            pad_token_id=0,
            **sampling,
        )
        token_ids = output[:, input_ids.shape[1] :].tolist()
        total_s = time.perf_counter() - start_s
        times_s = [at - start_s for at in arrivals.times_s[1:]]
        return BatchTrace(
            arrivals_s=[times_s for _ in job.prompts],
            token_ids=token_ids,
            total_s=total_s,
            usage={"transformers": usage().since(before)},
        )


def _left_padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [B, longest] and the attention mask that hides the padding."""
    longest = max(map(len, prompts))
    padded = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(padded), torch.tensor(mask)


if __name__ == "__main__":
    answer_jobs(GenerateJob, Reference)
