"""The byte-level BPE tokenizer of the embedded target, in the Hugging Face layout."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCAB_SIZE = 4096
END_OF_TEXT, IM_START, IM_END, PAD, MASK = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>", "<|mask|>",
)  # fmt: skip
_RESERVED = [f"<|reserved_{i}|>" for i in range(3)]
SPECIAL_TOKENS = [END_OF_TEXT, IM_START, IM_END, PAD, MASK, *_RESERVED]
MAX_LENGTH = 2048
# Words with their leading space, single digits, punctuation runs, line ends, indentation.
_SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def train(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Byte-level BPE with exactly vocab_size entries; special tokens have the lowest ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    reached = tokenizer.get_vocab_size()
    if reached != vocab_size:
        raise ValueError(f"{reached} of {vocab_size} tokens: too little text for the vocabulary")
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and its companions as transformers expects them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "pad_token": PAD,
        "mask_token": MASK,
        "additional_special_tokens": [IM_START, IM_END],
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(folder / "tokenizer_config.json", config)
    keys = ("eos_token", "pad_token", "mask_token", "additional_special_tokens")
    _write_json(folder / "special_tokens_map.json", {key: config[key] for key in keys})
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
