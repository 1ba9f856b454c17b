"""The report on an exported target: held-out figures of the stored weights, and the model card."""

import datetime
import json
import logging
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from draft_node.training import dataset, evaluate, prompts, tokenizer
from draft_node.training.batches import encode_stream
from draft_node.training.checkpoint import Progress
from draft_node.training.corpus import DOMAINS
from draft_node.training.decoder import Decoder, DecoderConfig
from specserve.models.config import read_spec

log = logging.getLogger(__name__)

FIGURES = "held_out.json"
CONTEXT = 1024
NUM_GREEDY = 64
DISTINCT_FLOOR = 0.8


@dataclass(frozen=True)
class Loss:
    """Held-out loss of one slice of the held-out text."""

    num_files: int
    num_tokens: int
    num_bytes: int
    nats_per_token: float
    bits_per_byte: float


def load_decoder(folder: Path, device: str = "cpu") -> Decoder:
    """The exported weights (bfloat16 on disk) as a float32 decoder."""
    model = Decoder(DecoderConfig.of(read_spec(folder)))
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return model.to(device).eval()


def held_out_losses(model: Decoder, work: Path) -> dict[str, Loss]:
    """Losses per domain, over all held-out text and over the Python distribution's part."""
    trained = dataset.load_tokenizer(work)
    documents = dataset.held_out_documents(work)
    losses = {}
    for domain in DOMAINS:
        everything = [d for d in documents if d.domain == domain]
        python = [d for d in everything if d.origin in {"stdlib", "topics"}]
        for name, part in ((domain, everything), (f"{domain} (Python distribution)", python)):
            stream = encode_stream(trained, [d.text for d in part], tokenizer.END_OF_TEXT)
            num_bytes = sum(len(d.text.encode()) for d in part)
            nats = evaluate.stream_loss(model, stream, CONTEXT, rows=4)
            bits = evaluate.bits_per_byte(nats, len(stream), num_bytes)
            losses[name] = Loss(len(part), len(stream), num_bytes, round(nats, 4), round(bits, 4))
    return losses


def varied_share(out: Path, work: Path, folder: Path, batch: int = 25) -> dict[str, float]:
    """Per domain, the share of prompts whose greedy continuation does not repeat itself."""
    trained = dataset.load_tokenizer(work)
    shares = {}
    for domain in DOMAINS:
        texts = [prompt["text"] for prompt in prompts.read(folder, domain)]
        encoded = sorted((trained.encode(text).ids for text in texts), key=len)
        ratios = [
            evaluate.distinct_ratio(ids)
            for first in range(0, len(encoded), batch)
            for ids in evaluate.greedy(out, encoded[first : first + batch], NUM_GREEDY)
        ]
        shares[domain] = sum(ratio >= DISTINCT_FLOOR for ratio in ratios) / len(ratios)
    return shares


def write(out: Path, work: Path, prompt_folder: Path, progress: Progress, command: str) -> None:
    """Evaluate the exported folder; write held_out.json and README.md into it."""
    with torch.inference_mode():
        model = load_decoder(out)
        losses = held_out_losses(model, work)
        varied = varied_share(out, work, prompt_folder)
    figures = {
        "context_tokens": CONTEXT,
        "losses": {name: asdict(loss) for name, loss in losses.items()},
        "greedy_varied_share": varied,
        "training": {
            "steps": progress.step,
            "tokens": progress.tokens,
            "active_minutes": round(progress.active_s / 60, 1),
            "epochs": _epochs(progress, work),
        },
    }
    log.info("held out: %s", json.dumps(figures["losses"]))
    log.info("greedy text that does not repeat itself: %s", varied)
    (out / FIGURES).write_text(json.dumps(figures, indent=2) + "\n")
    card = _card(losses, varied, figures["training"], work, command, prompt_folder.name)
    (out / "README.md").write_text(card)


def _epochs(progress: Progress, work: Path) -> dict[str, float]:
    sizes = dataset.statistics(work)
    return {d: round(progress.tokens / 2 / sizes[f"train-{d}"]["tokens"], 2) for d in DOMAINS}


def _table(rows: Sequence[Sequence[object]]) -> str:
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def _card(
    losses: dict[str, Loss],
    varied: dict[str, float],
    training: dict,
    work: Path,
    command: str,
    prompts: str,
) -> str:
    """The model card."""
    sizes = dataset.statistics(work)
    loss_rows = [("held-out text", "files", "tokens", "nats/token", "bits/byte"), ("---",) * 5]
    loss_rows += [
        (name, loss.num_files, f"{loss.num_tokens:,}", f"{loss.nats_per_token:.3f}",
         f"{loss.bits_per_byte:.3f}") for name, loss in losses.items()
    ]  # fmt: skip
    data_rows = [("training text", "files", "MB", "tokens", "epochs"), ("---",) * 5]
    data_rows += [
        (d, sizes[f"train-{d}"]["files"], f"{sizes[f'train-{d}']['bytes'] / 1e6:.1f}",
         f"{sizes[f'train-{d}']['tokens']:,}", training["epochs"][d]) for d in DOMAINS
    ]  # fmt: skip
    varied_text = ", ".join(f"{domain} {share:.1%}" for domain, share in varied.items())
    return _CARD.format(
        losses=_table(loss_rows), data=_table(data_rows), varied=varied_text, command=command,
        prompts=prompts, num_greedy=NUM_GREEDY, floor=DISTINCT_FLOOR, context=CONTEXT,
        steps=training["steps"], tokens=training["tokens"] / 1e6,
        minutes=training["active_minutes"], date=datetime.datetime.now(datetime.UTC).date(),
        machine=f"{platform.machine()}, torch {torch.__version__}, "
                f"Python {platform.python_version()}",
    )  # fmt: skip


_CARD = """\
# The embedded default target

A Qwen3-architecture base language model of 5.0M parameters (5 layers, width 256, 8 heads, 4 KV
heads, 4,096 byte-level BPE tokens, tied embeddings, contexts up to 2,048 tokens), small enough to
ship with the package, so that everything runs without a download. It continues Python code and
technical English. It does not follow instructions; the ChatML template only gives the chat API
something to render. Loads with `transformers` as it stands.

## Held-out loss

Of the stored bfloat16 weights, evaluated in float32 on files that training never saw, in windows
of {context} tokens:

{losses}

Greedy continuations of {num_greedy} tokens with at least {floor:.0%} distinct 4-grams, over the
prompts of `../{prompts}`: {varied}.

## Training

{steps:,} steps, {tokens:.1f}M tokens, {minutes} active minutes ({machine},
{date}), Muon for matrices and AdamW for the rest, warm-up, stable, decay.
Figures also in `held_out.json`; file hashes in `SHA256SUMS` (`sha256sum -c SHA256SUMS`).

    {command}

{data}

Code: the standard library with its tests, and sources from site-packages. Prose: docstrings,
`help()` topics, README, METADATA and licence files, and documentation and manual pages below
/usr/share. Files are held out by the hash of their names; any window of 50 words that a training
file shares with a held-out file was cut from training. The text itself is not redistributed here.
It carries many free licences (PSF, BSD, MIT, Apache-2.0, GPL documentation among them); do not use
the model to reproduce such text verbatim. The weights are offered under the project's licence.
"""
