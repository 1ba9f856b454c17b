"""Reference cases of targets."""

import torch

from specserve.models.rope import RotaryTable, inverse_frequencies
from specserve.models.transformer import Transformer
from tests.golden_case import Case, Session, load_target


def compare_target(case: Case) -> None:
    """Forward of a whole prompt, its caches, taps and rotary tables, then greedy decoding."""
    target = load_target(case.folder)
    spec = target.config
    prompt = case.input("prompt_ids")
    continuation = case.expected["greedy_continuation"]
    session = Session(target, len(prompt) + len(continuation))

    taps = tuple(range(-1, spec.num_layers))
    hidden, tapped = session.feed(prompt, taps)
    logits = session.logits(hidden)
    for i in range(spec.num_layers):
        case.compare(f"hidden_states.{i}", tapped[i])
    case.compare(f"hidden_states.{spec.num_layers}", hidden)
    case.compare("last_layer_raw", tapped[-1])
    case.compare("logits", logits)
    case.compare("greedy_next_ids", logits.argmax(-1))
    for name in sorted(case.expected):
        if name.startswith("kv.") and name.endswith(".k"):
            layer = int(name.split(".")[1])
            keys, values = session.keys_and_values(layer)
            case.compare(f"kv.{layer}.k", keys)
            case.compare(f"kv.{layer}.v", values)
    case.compare("greedy_continuation", greedy(session, logits[-1], len(continuation)))
    compare_rope(case, target)


def greedy(session: Session, logits: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Decode one token at a time from the logits [V] of the last prompt token: [num_tokens]."""
    token_ids: list[int] = []
    while len(token_ids) < num_tokens:
        token_ids.append(int(logits.argmax()))
        hidden, _ = session.feed(torch.tensor(token_ids[-1:]))
        logits = session.logits(hidden)[-1]
    return torch.tensor(token_ids)


def compare_rope(case: Case, target: Transformer) -> None:
    spec = target.config
    num_positions = len(case.expected["rope_cos"])
    table = RotaryTable(
        spec.rope,
        head_dim=spec.head_dim,
        num_positions=num_positions,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    cos, signed_sin = (part[:, 0] for part in table.at(torch.arange(num_positions)))
    sign = torch.ones(spec.head_dim)
    sign[: spec.head_dim // 2] = -1
    case.compare("rope_inv_freq", inverse_frequencies(spec.rope, spec.head_dim))
    case.compare("rope_cos", cos)
    case.compare("rope_sin", signed_sin * sign)
