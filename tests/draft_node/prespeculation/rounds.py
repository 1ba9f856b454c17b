"""A target by hand: reports of made-up rounds, and what a `PreSpeculation` pushes in answer."""

import numpy as np
import torch

from draft_node.draft_slots import DraftSlots
from draft_node.prespeculation.draft_batches import BatchSettings
from draft_node.prespeculation.prespeculation import PreSpeculation
from specserve.drafters.language_model import LanguageModelDrafter
from specserve.sampling.draft_probs import DraftProbs
from specserve.transport.link.messages import BlockKey, RowReport
from tests.backends.chosen import BACKEND
from tests.specserve.drafters.checkpoints import DSPARK, make_drafter
from tests.specserve.models.checkpoints import load

VOCAB, HIDDEN = 64, 32
CPU = torch.device("cpu")


def tokens(count, seed=0):
    return np.random.default_rng(seed).integers(VOCAB, size=count).astype(np.int32)


TEXT = tokens(30).tolist()
END = len(TEXT) - 1  # position of the anchor


def features_of(token_ids, start=0, width=HIDDEN):
    """Features that are a function of position and token, as the target's are."""
    rows = [
        np.random.default_rng([position, int(token_id)]).standard_normal(width)
        for position, token_id in enumerate(token_ids, start)
    ]
    return np.array(rows, dtype=np.float32).reshape(len(token_ids), width)


def dspark(folder, target, **changes):
    return make_drafter(folder, DSPARK, target, **changes)


def language_model(target, gamma=4, num_context_tokens=512):
    return LanguageModelDrafter(
        load(target.folder), backend=BACKEND, gamma=gamma, num_context_tokens=num_context_tokens
    )


class Rounds:
    """One `PreSpeculation` and the reports for it; positions up to 127."""

    def __init__(self, drafter, *, epoch=1, draft_batch=4, fan_out=8, **options):
        settings = {"num_kept": 16, "usual_tokens": None, "most_tokens": None, "goes_beyond": False}
        settings["saguaro_c"] = None
        settings = {key: options.pop(key, default) for key, default in settings.items()}
        self.drafter = drafter
        self.streams = DraftSlots(drafter, dtype=torch.float32, device=CPU)
        self.prespeculation = PreSpeculation(
            drafter,
            self.streams,
            BatchSettings(size=draft_batch, fan_out=fan_out, **settings),
            backend=BACKEND,
            **options,
        )
        self.pushes = []
        self.prespeculation.attach(self._send, epoch, 128)

    def _send(self, push):
        self.pushes.append(push)
        return True

    def row(self, known, stream=1, round=1, start=0, block=(), **fields):
        """A report whose anchor is the last of `known`, of which those from `start` on are new."""
        new = np.array(known[start:], dtype=np.int32)
        width = self.drafter.feature_size
        settings = {
            "seed": 7 + stream,
            "sample_index": 0,
            "method": "coupled",
            "temperature": 1.0,
            "speculation_id": 0,
            "features": features_of(new[:-1], start, width),
        }
        return RowReport(
            stream=stream,
            round=round,
            start=start,
            token_ids=new,
            block=np.array(block, dtype=np.int32),
            **{**settings, **fields},
        )

    def take(self, known, round_latency_s=0.0, **fields):
        row = self.row(known, **fields)
        self.prespeculation.take(row, round_latency_s)
        self.streams.extend(10_000)
        return row

    def finish(self):
        """All draft batches of the rounds in flight; the pushes made."""
        before = len(self.pushes)
        while self.prespeculation.step():
            pass
        return self.pushes[before:]


def blocks_of(pushes):
    """(tokens, confidences, distribution, speculation id) by key; none may come twice."""
    found: dict[BlockKey, tuple] = {}
    for push in pushes:
        for place, key in enumerate(push.keys):
            assert key not in found
            draft_probs = DraftProbs(
                torch.from_numpy(push.kept_ids[place].astype(np.int64)),
                torch.from_numpy(push.kept_probs[place]),
            )
            token_ids = push.token_ids[place, : push.lengths[place]].tolist()
            found[key] = (
                token_ids,
                push.confidences[place],
                draft_probs,
                push.speculation_ids[place],
            )
    return found


def pending_of(rounds, verify_len=3, **fields):
    """Take a round whose block has been pushed: the root that the target waited for."""
    rounds.take(TEXT, round=1, awaits=True, **fields)
    assert rounds.prespeculation.step()
    key = (fields.get("stream", 1), 1, END, TEXT[-1])
    (token_ids, _, _, speculation_id) = blocks_of(rounds.pushes)[key]
    rounds.pushes.clear()
    block = token_ids[:verify_len]
    rounds.take(TEXT, start=END, round=1, block=block, speculation_id=speculation_id, **fields)
    return block
