"""Builds the work folder's data: tokenizer, token streams, held-out texts. Skipped when present.

Layout: tokenizer/, train-<domain>.npy, held-out-<domain>.npy (uint16), held-out.jsonl (documents).
"""

import fcntl
import json
import logging
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from draft_node.training import corpus, tokenizer
from draft_node.training.batches import encode_stream, save_stream
from draft_node.training.corpus import DOMAINS, Document
from specserve.models import tokenizer_files

log = logging.getLogger(__name__)

TOKENIZER_CHARS = 8_000_000  # per domain; more text changes next to nothing in 4,096 entries
_DONE, _LOCK = "data.json", "text-lock"


@contextmanager
def preparing(work: Path) -> Generator[None]:
    """Have what runs share below --work alone, for as long as text is collected and written.

    Waits for a run that does so now, and then finds what that has made.
    """
    work.mkdir(parents=True, exist_ok=True)
    with (work / _LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another run prepares its text in %s; waiting for it", work)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:  # some network's file systems have no locks
            log.warning("%s cannot be locked (%s): start no second run", work, error.strerror)
        yield


def prepare(work: Path, model: Path | None = None) -> None:
    """Collect, split, encode; a few minutes on one core. Trains a tokenizer unless given a model's.

    `model`: a folder or a GGUF file.
    """
    if (work / _DONE).exists():
        return
    work.mkdir(parents=True, exist_ok=True)
    log.info("collecting text")
    training, held_out = corpus.split(corpus.collect())
    if model is None:
        log.info("training the tokenizer")
        trained = tokenizer.train(_sample(training))
    else:
        trained = tokenizer_files.load_tokenizer(model)
    tokenizer.save(trained, work / "tokenizer")
    _write_documents(work / "held-out.jsonl", held_out)
    log.info("encoding")
    statistics: dict[str, dict[str, int]] = {}
    for name, documents in (("train", training), ("held-out", held_out)):
        for domain in DOMAINS:
            texts = [d.text for d in documents if d.domain == domain]
            stream = encode_stream(trained, texts, tokenizer.END_OF_TEXT)
            save_stream(work / f"{name}-{domain}.npy", stream)
            num_bytes = sum(len(text.encode()) for text in texts)
            statistics[f"{name}-{domain}"] = {
                "files": len(texts), "bytes": num_bytes, "tokens": len(stream),
            }  # fmt: skip
            log.info("%s %s: %s", name, domain, statistics[f"{name}-{domain}"])
    temporary = work / (_DONE + ".tmp")
    temporary.write_text(json.dumps(statistics, indent=2))
    os.replace(temporary, work / _DONE)


def statistics(work: Path) -> dict[str, dict[str, int]]:
    """Files, bytes and tokens of every stream."""
    return json.loads((work / _DONE).read_text())


def streams(work: Path, name: str) -> dict[str, np.ndarray]:
    """Memory-mapped token streams per domain; name is "train" or "held-out"."""
    return {domain: np.load(work / f"{name}-{domain}.npy", mmap_mode="r") for domain in DOMAINS}


def held_out_documents(work: Path) -> list[Document]:
    """The evaluation side of the split, as text."""
    lines = (work / "held-out.jsonl").read_text().splitlines()
    return [Document(**json.loads(line)) for line in lines]


def load_tokenizer(work: Path) -> Tokenizer:
    """The tokenizer trained by prepare()."""
    return Tokenizer.from_file(str(work / "tokenizer" / "tokenizer.json"))


def _sample(documents: Iterable[Document]) -> Iterator[str]:
    """The same amount of text from each domain, spread evenly over its documents."""
    documents = list(documents)
    for domain in DOMAINS:
        texts = [d.text for d in documents if d.domain == domain]
        step = max(1, sum(map(len, texts)) // TOKENIZER_CHARS)
        yield from texts[::step]


def _write_documents(path: Path, documents: Iterable[Document]) -> None:
    path.write_text("".join(json.dumps(asdict(document)) + "\n" for document in documents))
