"""Small random models in folders as they are published, with the tokenizer of the tiny model."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from specserve.settings.target_source import EMBEDDED_TARGET
from tests.golden import Session
from tests.reliability.scale import is_long
from tests.specserve.models.checkpoints import LLAMA, load, write_checkpoint

NUM_TOKENS, PADDING = 4096, 64
BOS_ID, BOS = 5, "<|reserved_0|>"
ORIGINAL_LEN = 32  # positions before LLAMA's rotary embeddings are scaled
_TURN = "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}" + _TURN + "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_named(folder: Path, config: dict[str, Any], **changes: Any) -> Path:
    """A checkpoint whose kind transformers recognises."""
    kind = "llama" if config is LLAMA else "qwen3"
    return write_checkpoint(folder, config, model_type=kind, **changes)


def write_model(folder: Path, config: dict[str, Any], **changes: Any) -> Path:
    """Weights for the vocabulary of the tiny model, and its tokenizer."""
    shape = {"vocab_size": NUM_TOKENS, "eos_token_id": 0, **changes}
    write_named(folder, config, **shape)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(EMBEDDED_TARGET / name, folder / name)
    return folder


def write_llama(folder: Path) -> Path:
    """In the style of Llama 3: a tokenizer that begins texts with a token, a template that does so,
    too, scaled positions; and more rows than there are tokens.
    """
    write_model(folder, LLAMA, vocab_size=NUM_TOKENS + PADDING, max_position_embeddings=512)
    bos = {"SpecialToken": {"id": BOS, "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            bos,
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {BOS: {"id": BOS, "ids": [BOS_ID], "tokens": [BOS]}},
    }
    change(folder / "tokenizer.json", post_processor=template)
    change(folder / "tokenizer_config.json", bos_token=BOS, chat_template=None)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def change(path: Path, **changes: Any) -> None:
    """Fields of a JSON file; None removes one."""
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


@torch.inference_mode()
def reference_logits(folder: Path, token_ids: list[int]) -> torch.Tensor:
    """float32 [len(token_ids), V], of one forward without a cache.

    In a long run by transformers, whose import takes longer than a case; that both agree is what
    tests/specserve/models/test_transformers_parity.py tests.
    """
    ids = torch.tensor(token_ids)
    if not is_long():
        session = Session(load(folder), len(ids))
        return session.logits(session.feed(ids)[0])
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model(ids[None]).logits[0]
