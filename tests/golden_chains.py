"""Reference cases of drafters that draw one token after the other: EAGLE-3 and local heads."""

import torch

from specserve.drafters.dialects import read_draft_spec
from specserve.drafters.eagle3 import Eagle3Drafter
from specserve.drafters.load import load_drafter
from specserve.drafters.local_head import (
    GruHead,
    LocalHeadOptions,
    load_local_head,
    log_prior,
)
from specserve.drafters.protocol import ContextUpdate, DraftBatch
from specserve.drafters.serial_head import SerialHead
from specserve.drafters.spec import LocalHeadKind, LocalHeadSpec
from specserve.drafters.weights import TargetWeights
from specserve.models.config import read_spec
from tests.backends.chosen import BACKEND
from tests.golden_blocks import ROW, Recorder, num_rounds, options
from tests.golden_case import FIXTURES, Case, NotACase, Session, find_target, load_target


def compare_eagle3(case: Case) -> None:
    """Rounds of drafting, forced acceptance and the context after it."""
    folder = find_target(case.folder)
    target = load_target(folder)
    drafter = load_drafter(case.folder, TargetWeights.of(folder, target), options())
    assert isinstance(drafter, Eagle3Drafter)
    taps = drafter.features.layers
    case.compare("target_layer_ids", torch.tensor(taps))

    token_ids = case.input("prompt_ids")
    session = Session(target, 128)
    hidden, tapped = session.feed(token_ids, taps)
    anchor_id = session.logits(hidden[-1:])[0].argmax()
    features = torch.cat(tapped, dim=1)
    for number in range(1, num_rounds(case) + 1):
        name = f"r{number}.{{}}".format
        start = drafter.context_len(ROW)
        projected = drafter.features.project(features)
        drafter.extend(ContextUpdate([ROW], [start], [len(token_ids)], token_ids, projected))
        if number > 1:
            # The last entry of a context is made of the anchor, which only now has come with it.
            compare_entries(case, drafter, number - 1, start)
        position = drafter.context_len(ROW)
        case.compare(name("anchor_id"), anchor_id[None])
        case.compare(name("anchor_pos"), torch.tensor([position]))
        case.compare(name("draft_cache_len_before_propose"), torch.tensor([position]))
        recorder = Recorder()
        states = watch_steps(drafter)
        drafted = drafter.draft(DraftBatch([ROW], anchor_id[None]), recorder).token_ids[0]
        case.compare(name("draft_hidden_last"), states[0][0])
        case.compare(name("draft_logits"), recorder.logits)
        case.compare(name("greedy_ids"), drafted)
        if name("accepted_forced") not in case.expected:
            break
        accepted = int(case.input(name("accepted_forced")))
        verify_ids, kept = torch.cat([anchor_id[None], drafted]), accepted + 1
        hidden, tapped = session.feed(verify_ids, taps)
        verified = session.logits(hidden).argmax(-1)
        session.length = position + kept
        token_ids, features = verify_ids[:kept], torch.cat(tapped, dim=1)[:kept]
        anchor_id = verified[accepted]
        case.compare(name("committed_features"), features)
        case.compare(name("committed_ids"), torch.cat([token_ids[1:], anchor_id[None]]))


def watch_steps(drafter: Eagle3Drafter) -> list[torch.Tensor]:
    """Hidden states that the drafter turns into logits from now on, one [B, H] a step."""
    states: list[torch.Tensor] = []
    norm = drafter.decoder.final_norm

    def watched(hidden: torch.Tensor) -> torch.Tensor:
        states.append(hidden.clone())
        return norm(hidden)

    object.__setattr__(drafter.decoder, "final_norm", watched)  # whoever steps has this decoder
    return states


def compare_entries(case: Case, drafter: Eagle3Drafter, number: int, length: int) -> None:
    keys, values = drafter.context.read(ROW, 0)
    case.check(f"r{number}.kv.0.k", keys[:, :length])
    case.check(f"r{number}.kv.0.v", values[:, :length])


def compare_local_head(case: Case) -> None:
    """Both heads of the case, alone and added to given logits."""
    spec = read_draft_spec(case.folder)
    assert isinstance(spec, LocalHeadSpec)
    target = embedding_source(case)
    alpha, beta = (float(case.input(name)) for name in ("alpha", "beta"))
    counts = case.input("unigram_counts")
    case.compare("unigram_log_prior", log_prior(counts))

    def load(kind: LocalHeadKind, alpha: float, beta: float) -> SerialHead:
        chosen = LocalHeadOptions(alpha, beta, kind, counts)
        return load_local_head(
            case.folder, spec, target=target, dtype=torch.float32, backend=BACKEND, options=chosen
        )

    forced, long_logits = case.input("forced_ids"), case.input("long_logits")
    for kind, prefix in ((LocalHeadKind.GRU, ""), (LocalHeadKind.MARKOV, "markov_")):
        short = follow(load(kind, 1.0, 0.0), torch.zeros(8, spec.vocab_size), forced, case)
        case.compare(f"{prefix}forced_short_logits", short[1:])
        head = load(kind, alpha, beta)
        case.check(f"{prefix}forced_fused_logits", follow(head, long_logits, forced))
        logits, drafted = draw_greedily(head, long_logits)
        case.compare(f"{prefix}greedy_fused_logits", logits)
        case.compare(f"{prefix}greedy_ids", drafted)


def embedding_source(case: Case) -> TargetWeights:
    """The target whose embeddings the head reads; its metadata calls it by another name."""
    from safetensors import safe_open

    with safe_open(case.folder / "io.safetensors", framework="pt") as file:
        name = ((file.metadata() or {}).get("embed_from") or "").split(" ")[0]
    for folder in (case.folder.resolve().parent / name, FIXTURES / name):
        if name and (folder / "config.json").is_file():
            return TargetWeights(folder, read_spec(folder))
    raise NotACase(f"{case.folder}: embeddings of {name!r} are neither beside it nor in fixtures")


def follow(
    head: SerialHead, base: torch.Tensor, forced: torch.Tensor, case: Case | None = None
) -> torch.Tensor:
    """Logits [G, V] of every slot along a path; a GRU's states are compared on the way."""
    run = head.begin(torch.zeros(1, len(base), 1), base.clone()[None])
    logits, states = [run.logits(0, torch.tensor([0]))[0]], []
    for slot in range(1, len(base)):
        logits.append(run.logits(slot, forced[slot - 1 : slot])[0])
        if isinstance(run, GruHead.Run):
            states.append(run.state[0])
    if case is not None and isinstance(head, GruHead):
        case.compare("forced_gru_hidden", torch.stack(states))
        case.compare("forced_rank_state", head.rank_state(torch.stack(states)))
    return torch.stack(logits)


def draw_greedily(head: SerialHead, base: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    run = head.begin(torch.zeros(1, len(base), 1), base.clone()[None])
    logits, drawn = [], [torch.tensor([0])]
    for slot in range(len(base)):
        logits.append(run.logits(slot, drawn[-1])[0])
        drawn.append(logits[-1].argmax()[None])
    return torch.stack(logits), torch.cat(drawn[1:])
