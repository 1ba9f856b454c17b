"""A whole little GGUF file: quantised matrices, byte-level tokens, a chat template."""

from pathlib import Path

import gguf
import numpy as np

_HIDDEN, _HEADS, _KV_HEADS, _WIDTH, _LAYERS = 64, 4, 2, 128, 2
_CHAT = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|end|>"


def write_small_gguf(path: Path, *, kind=gguf.GGMLQuantizationType.Q8_0, factor=None) -> None:
    """A Llama of two layers; `factor`: of linear rotary scaling."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("small")
    writer.add_context_length(512)
    writer.add_embedding_length(_HIDDEN)
    writer.add_feed_forward_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    if factor is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(factor)
    vocab_size = _add_tokenizer(writer)
    generator = np.random.default_rng(0)
    for name, shape in _shapes(vocab_size).items():
        numbers = generator.normal(0, 0.3, shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, 1 + numbers / 8)
        else:
            writer.add_tensor(name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter) -> int:
    """The size of the vocabulary."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    tokens = [chr(byte) for byte in printed] + [chr(256 + i) for i in range(len(others))]
    tokens += ["th", "the", "<|user|>", "<|end|>"]
    special = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(tokens) - 2) + [special, special])
    writer.add_token_merges(["t h", "th e"])
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_chat_template(_CHAT)
    return len(tokens)


def _shapes(vocab_size: int) -> dict[str, tuple[int, ...]]:
    kv = _HIDDEN // _HEADS * _KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab_size, _HIDDEN),
        "output_norm.weight": (_HIDDEN,),
    }
    for layer in range(_LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (_HIDDEN,),
            f"blk.{layer}.ffn_norm.weight": (_HIDDEN,),
            f"blk.{layer}.attn_q.weight": (_HIDDEN, _HIDDEN),
            f"blk.{layer}.attn_k.weight": (kv, _HIDDEN),
            f"blk.{layer}.attn_v.weight": (kv, _HIDDEN),
            f"blk.{layer}.attn_output.weight": (_HIDDEN, _HIDDEN),
            f"blk.{layer}.ffn_gate.weight": (_WIDTH, _HIDDEN),
            f"blk.{layer}.ffn_up.weight": (_WIDTH, _HIDDEN),
            f"blk.{layer}.ffn_down.weight": (_HIDDEN, _WIDTH),
        }
    return shapes
