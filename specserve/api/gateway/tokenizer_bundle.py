"""The served tokenizer and chat template as a zip archive, which a gateway makes its own of.

Made of what the service itself reads, whether that is a folder or a GGUF file, so that a gateway's
token ids are the service's.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

from smg_grpc_proto.generated import common_pb2 as pb

from specserve.models.known_tokens import TOKENIZER_FILE
from specserve.models.tokenizer_files import load_tokenizer, read_chat_template

_CHUNK_BYTES = 64 * 1024
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # of every file: the same model has the same fingerprint


def archive_of(model: Path) -> bytes:
    """Of a model's folder or file. Takes a second of a core where the vocabulary is large."""
    template, special = read_chat_template(model)
    config: dict[str, str] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    config |= {name: token for name, token in special.items() if token}
    if template is not None:
        config["chat_template"] = template
    files = {
        TOKENIZER_FILE: load_tokenizer(model).to_str(),
        "tokenizer_config.json": json.dumps(config, ensure_ascii=False),
    }
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, _LONG_AGO), text, zipfile.ZIP_DEFLATED)
    return whole.getvalue()


def chunks_of(archive: bytes) -> Iterator[pb.GetTokenizerChunk]:
    """In order; the last one has the fingerprint of the whole."""
    for start in range(0, len(archive), _CHUNK_BYTES):
        end = start + _CHUNK_BYTES
        is_last = end >= len(archive)
        fingerprint = hashlib.sha256(archive).hexdigest() if is_last else ""
        yield pb.GetTokenizerChunk(data=archive[start:end], sha256=fingerprint)
