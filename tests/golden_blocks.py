"""Reference cases of block drafters: DSpark and DFlash, in every dialect."""

from dataclasses import dataclass, replace
from unittest import mock

import torch

from specserve.backends.torch.backend import TorchBackend
from specserve.drafters.block_drafter import BlockDrafter
from specserve.drafters.confidence_head import ConfidenceHead
from specserve.drafters.load import DrafterOptions, load_drafter
from specserve.drafters.markov_head import GatedHead, RnnHead
from specserve.drafters.protocol import ContextUpdate, DraftBatch, SpeculationBatch
from specserve.drafters.weights import TargetWeights
from specserve.models.rope import inverse_frequencies
from specserve.sampling.draft_probs import DraftProbs
from specserve.sampling.draft_sampler import BlockLayout
from tests.backends.chosen import BACKEND
from tests.golden_case import PROBABILITY_TOLERANCE, Case, Session, find_target, load_target

ROW = 3
CPU = torch.device("cpu")


def options(**changes) -> DrafterOptions:
    settings = {
        "dtype": torch.float32,
        "backend": BACKEND,
        "num_context_tokens": 256,
        "max_positions": 128,
    }
    return DrafterOptions(**{**settings, **changes})


class Recorder:
    """A method that draws the likeliest tokens, or given ones, and keeps the logits it saw."""

    def __init__(self, forced_ids: torch.Tensor | None = None) -> None:
        self._forced_ids = forced_ids
        self._logits: list[torch.Tensor] = []

    def begin(self, layout: BlockLayout) -> "Recorder":
        self._target_ids = layout.target_ids
        return self

    def draw(self, first_slot: int, logits: torch.Tensor) -> torch.Tensor:
        self._logits.append(logits.clone())
        if self._forced_ids is not None:
            return self._forced_ids[None, first_slot : first_slot + logits.shape[1]]
        winners = logits.argmax(-1)
        return winners if self._target_ids is None else self._target_ids[winners]

    def draft_probs(self) -> DraftProbs | None:
        return None

    @property
    def logits(self) -> torch.Tensor:
        """[G, DV] of the first block."""
        return torch.cat(self._logits, dim=1)[0]


class _Probe(ConfidenceHead):
    """A confidence head that keeps what it saw."""

    def __call__(self, hidden: torch.Tensor, previous_ids: torch.Tensor) -> torch.Tensor:
        self.__dict__["seen"] = (hidden, previous_ids)
        return super().__call__(hidden, previous_ids)


@dataclass
class RecordingLayer:
    """A layer that keeps its last output."""

    layer: object
    output: torch.Tensor | None = None

    def __call__(self, *arguments: object) -> torch.Tensor:
        self.output = self.layer(*arguments)  # type: ignore[operator]
        return self.output


def compare_block_drafter(case: Case) -> None:
    """All rounds against the target: features, context, drafts, forced paths, verification."""
    folder = find_target(case.folder)
    target = load_target(folder)
    drafters = _load(case, TargetWeights.of(folder, target))
    drafter = drafters[0]
    taps = drafter.features.layers
    case.check("target_layer_ids", torch.tensor(taps))
    case.check("rope_inv_freq", _frequencies(drafter))
    if drafter.target_ids is not None:
        case.compare("target_ids_of_draft_vocab", drafter.target_ids)
        case.compare("d2t", drafter.target_ids - torch.arange(len(drafter.target_ids)))

    prompt = case.input("prompt_ids")
    session = Session(target, 128)
    hidden, tapped = session.feed(prompt, taps)
    last_logits = session.logits(hidden[-1:])[0]
    case.check("r1.target_logits_last", last_logits)
    token_ids, features = prompt, torch.cat(tapped, dim=1)
    anchor_id = last_logits.argmax()
    for number in range(1, num_rounds(case) + 1):
        name = f"r{number}.{{}}".format
        for each in drafters:
            draft_round = BlockRound(case, number, each)
            draft_round.extend(token_ids, features)
            drafted = draft_round.draft(anchor_id)
        if name("accepted_forced") not in case.expected:
            break
        accepted = int(case.input(name("accepted_forced")))
        verify_ids = torch.cat([anchor_id[None], drafted])
        case.check(name("verify_input_ids"), verify_ids)
        start = session.length
        hidden, tapped = session.feed(verify_ids, taps)
        logits = session.logits(hidden)
        verified, features = logits.argmax(-1), torch.cat(tapped, dim=1)
        case.check(name("verify_target_logits"), logits)
        case.check(name("verify_target_argmax"), verified)
        case.check(name("verify_features"), features)
        agreed = (verified[:-1] == drafted).long().cumprod(0).sum()
        case.check(name("accepted_true_greedy"), agreed[None])
        session.length = start + accepted + 1
        token_ids, features = verify_ids[: accepted + 1], features[: accepted + 1]
        anchor_id = verified[accepted]


def compare_gemma4_drafter(case: Case) -> None:
    """Two rounds over given features; there is no target."""
    drafters = _load(case, None)
    case.compare("rope_inv_freq", _frequencies(drafters[0]))
    features, start = case.input("ctx_features"), 0
    for number in range(1, num_rounds(case) + 1):
        anchor_id = case.input(f"r{number}.anchor_id")[0]
        end = int(case.expected[f"r{number}.anchor_pos"])
        for drafter in drafters:
            draft_round = BlockRound(case, number, drafter)
            draft_round.extend(torch.zeros(end - start, dtype=torch.int64), features[start:end])
            draft_round.draft(anchor_id)
        start = end


@torch.inference_mode()
def rnn_states(head: RnnHead, hidden: torch.Tensor, previous_ids: torch.Tensor) -> torch.Tensor:
    """States [G, r] after each slot, of one block with hidden states [G, H] and tokens [G]."""
    vocab_size = head.output(head.embedding[:1]).shape[1]
    run = head.begin(hidden[None], torch.zeros(1, len(hidden), vocab_size))
    states: list[torch.Tensor] = []
    for slot in range(len(hidden)):
        run.logits(slot, previous_ids[slot, None])
        states.append(run.state[0])  # type: ignore[attr-defined]
    return torch.stack(states)


def num_rounds(case: Case) -> int:
    return max(
        int(name[1 : name.index(".")])
        for name in case.expected
        if name.startswith("r1.") or (name[:1] == "r" and name[1:2].isdigit())
    )


def _load(case: Case, target: TargetWeights | None) -> list[BlockDrafter]:
    """As it is served, and by torch, which says what its layers said."""
    drafters: list[BlockDrafter] = []
    for is_by_torch in (False, True):
        drafter = load_drafter(case.folder, target, options())
        assert isinstance(drafter, BlockDrafter)
        if is_by_torch:
            layers = tuple(RecordingLayer(layer) for layer in drafter.backbone.layers)
            drafter.backbone = replace(drafter.backbone, layers=layers)
            drafter = by_torch(drafter)
        if drafter.confidence_head is not None:
            drafter.confidence_head = _Probe(**vars(drafter.confidence_head))
        drafters.append(drafter)
    return drafters


def by_torch(drafter: BlockDrafter) -> BlockDrafter:
    """The same drafter, with empty contexts, whose passes torch makes."""
    backbone = drafter.backbone
    return BlockDrafter(
        backbone,
        backend=TorchBackend(CPU),
        num_context_tokens=256,
        head=drafter.head,
        confidence_head=drafter.confidence_head,
        target_ids=drafter.target_ids,
    )


def _frequencies(drafter: BlockDrafter) -> torch.Tensor:
    decoder = drafter.backbone.spec.decoder
    return inverse_frequencies(decoder.rope, decoder.head_dim)


class BlockRound:
    """One round of one drafter: extends the context, drafts greedily and along forced paths."""

    def __init__(self, case: Case, number: int, drafter: BlockDrafter) -> None:
        self.case, self.number, self.drafter = case, number, drafter
        self.start = drafter.context_len(ROW)

    def check(self, name: str, actual: torch.Tensor, *tolerance: float) -> None:
        self.case.check(f"r{self.number}.{name}", actual, *tolerance)

    def extend(self, token_ids: torch.Tensor, features: torch.Tensor) -> None:
        """Append the newly verified tokens [n] with their raw features [n, m * H]."""
        drafter, count = self.drafter, len(token_ids)
        projected = drafter.features.project(features)
        self.check("new_ctx_features", features)
        self.check("new_ctx_proj", projected)
        drafter.extend(ContextUpdate([ROW], [self.start], [count], token_ids, projected))
        for layer in range(drafter.backbone.spec.decoder.num_layers):
            keys, values = drafter.context.read(ROW, layer)
            self.check(f"kv.{layer}.k", keys)
            self.check(f"kv.{layer}.v", values)

    def draft(self, anchor_id: torch.Tensor) -> torch.Tensor:
        """Draft greedily [G] and compare everything about it; then follow a forced path."""
        drafter, position = self.drafter, self.drafter.context_len(ROW)
        size = drafter.backbone.spec.block_size
        self.check("anchor_id", anchor_id[None])
        self.check("anchor_pos", torch.tensor([position]))
        self.check("position_ids", torch.arange(self.start, position + size))
        block = torch.full((size,), drafter.backbone.spec.mask_token_id)
        block[0] = anchor_id
        self.check("block_input_ids", block)
        self.check("block_embeds", drafter.backbone.embed(block))

        drafted = self._follow(anchor_id, "greedy", Recorder())
        for index, layer in enumerate(drafter.backbone.layers):
            if not isinstance(layer, RecordingLayer):
                continue
            assert layer.output is not None
            self.check(f"layer_out.{index}", layer.output)
        forced = f"r{self.number}.forced_ids"
        if forced in self.case.expected:
            self._follow(anchor_id, "forced", Recorder(self.case.input(forced)))
        return drafted

    def _follow(self, anchor_id: torch.Tensor, path: str, recorder: Recorder) -> torch.Tensor:
        drafter, block_hidden = self.drafter, self.drafter.block_hidden
        batch, seen = DraftBatch([ROW], anchor_id[None]), []
        with mock.patch.object(
            drafter, "block_hidden", lambda *a: seen.append(block_hidden(*a)) or seen[-1]
        ):
            speculation = drafter.draft(batch, recorder)
        token_ids = speculation.token_ids[0]
        logits = recorder.logits
        hidden = seen[0][0]
        if path == "greedy":
            self.check("h", hidden)
            first = len(hidden) - drafter.gamma
            base = drafter.backbone.logits(hidden[first:])
            self.check("base_logits", base)
            self.check("base_logits_draft_vocab", base)
            self.check("greedy_ids", token_ids)
            self.check("draft_logits", logits)
        self.check(f"{path}_logits", logits)
        self.check(f"{path}_logits_draft_vocab", logits)
        self.check(f"{path}_probs_T0.7", torch.softmax(logits / 0.7, -1), PROBABILITY_TOLERANCE)
        previous_ids = torch.cat([anchor_id[None], token_ids[:-1]])
        self.check(f"{path}_prev_ids", previous_ids)
        self._check_heads(path, previous_ids, hidden, speculation)
        return token_ids

    def _check_heads(
        self,
        path: str,
        previous_ids: torch.Tensor,
        hidden: torch.Tensor,
        speculation: SpeculationBatch,
    ) -> None:
        head, confidence_head = self.drafter.head, self.drafter.confidence_head
        if head is not None:
            embedded = head.embedding[previous_ids]  # type: ignore[attr-defined]
            self.check(f"{path}_prev_emb", embedded)
        if isinstance(head, GatedHead):
            gate = head.from_hidden(hidden) + head.from_token(embedded) + head.bias
            self.check(f"{path}_gate", gate.sigmoid())
        if isinstance(head, RnnHead):
            hidden_of_slots = hidden[len(hidden) - self.drafter.gamma :]
            self.check(f"{path}_rnn_state", rnn_states(head, hidden_of_slots, previous_ids))
        if confidence_head is None:
            assert speculation.confidences is None
            return
        assert speculation.confidences is not None
        seen = confidence_head.__dict__["seen"]
        assert torch.equal(seen[1][0], previous_ids), "the head saw other tokens"
        confidences = speculation.confidences[0]
        self.check(f"{path}_conf_logits", confidence_head.logits(*seen)[0])
        self.check(f"{path}_conf", confidences, PROBABILITY_TOLERANCE)
        thresholds = f"r{self.number}.thresholds"
        if path == "greedy" and thresholds in self.case.expected:
            passed = confidences >= self.case.input(thresholds)[:, None]
            self.check("greedy_prefix_len_at_threshold", passed.long().cumprod(1).sum(1))
