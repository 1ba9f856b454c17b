# pyright: strict
"""How many token ids the tokenizer of a checkpoint folder knows.

Vocabularies are often padded beyond that, so that their sizes divide well: Qwen3 has 151,936 rows
for 151,669 tokens. Decides from `tokenizer.json`, of which only the ids are read.
"""

from pathlib import Path

import msgspec

from specserve.errors import Unsupported
from specserve.models.model_files import read_regular

TOKENIZER_FILE = "tokenizer.json"


class _AddedToken(msgspec.Struct):
    id: int


class _Model(msgspec.Struct):
    # Ids by token, or tokens in the order of their ids, as Unigram models list them.
    vocab: dict[str, int] | list[msgspec.Raw] = {}


class _TokenizerFile(msgspec.Struct):
    model: _Model
    added_tokens: list[_AddedToken] = []


def tokenizer_size(folder: Path) -> int | None:
    """One more than the greatest token id, whatever ids below it are unused.

    None for a folder without a tokenizer. Raises `Unsupported` for a file that is none.
    """
    path = folder / TOKENIZER_FILE
    try:
        file = msgspec.json.decode(read_regular(path), type=_TokenizerFile)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unsupported(f"model.target: cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unsupported(f"model.target: {path} is no tokenizer: {error}") from error
    vocab = file.model.vocab
    listed = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
    added = (token.id for token in file.added_tokens)
    return 1 + max((*listed, *added), default=-1)
