"""Many samples decoded round by round by what the service decodes with: `ColocatedDraft` proposes,
`Sampler` judges and cuts. Only the two models are replaced, by tables of their distributions.

Distributions depend on the row and the position, never on what was generated, so plain decoding
emits independent tokens with known distributions; a wrong row, position, distribution or key shifts
what comes out.
"""

import random

import torch

from specserve.drafters.protocol import SpeculationBatch
from specserve.sampling.draft_sampler import BlockLayout
from specserve.types import Request, SamplingParams
from target_node.sampler import Sampler
from target_node.scheduler import Row
from target_node.sequence import Sequence
from target_node.speculation.drafting import ColocatedDraft, RowToDraft, needs_probs
from tests.backends.chosen import BACKEND
from tests.exactness.simulation.distributions import ALL, NUM_KEPT, VOCAB_SIZE, Distributions, cells

PROMPT = [0]
CPU = torch.device("cpu")


class TableDrafter:
    """`Drafter` of blocks whose distributions stand in a table; its rows are those of `Streams`."""

    name = "table"
    holds_pending_tokens = True
    stops_in_time = False
    feature_size = 0
    features = None

    def __init__(self, distributions, gamma):
        self.distributions = distributions
        self.gamma = gamma
        self.context_lens = {}

    def context_len(self, row):
        return self.context_lens.get(row, 0)

    def extend(self, update):
        for row, start, count in zip(update.rows, update.starts, update.counts, strict=True):
            assert start == self.context_len(row)
            self.context_lens[row] = start + count

    def draft(self, batch, method):
        rows = torch.tensor(batch.rows)
        positions = torch.tensor([self.context_len(row) + 1 for row in batch.rows])
        sampling = method.begin(BlockLayout(positions, self.gamma, VOCAB_SIZE, None))
        drawn = [
            sampling.draw(
                slot,
                self.distributions.at(self.distributions.drafts, rows, positions + slot).log()[
                    :, None
                ],
            )
            for slot in range(self.gamma)
        ]
        return SpeculationBatch(torch.cat(drawn, dim=1), sampling.draft_probs(), None)

    def truncate(self, row, length):
        self.context_lens[row] = length

    def free(self, row):
        self.context_lens.pop(row, None)


class Streams:
    """`num_streams` samples, two of each request; every round drafts `gamma` tokens for each.

    If they `are_mixed`, three requests in six have seeds of their own, which makes them coupled.
    """

    def __init__(
        self,
        method,
        num_streams,
        *,
        pairs=ALL,
        num_tokens=3,
        gamma=3,
        first_nonce=1,
        are_mixed=False,
    ):
        self.distributions, self.num_tokens, self.gamma = Distributions(pairs), num_tokens, gamma
        self.draft = ColocatedDraft(
            TableDrafter(self.distributions, gamma),
            None,
            vocab_size=VOCAB_SIZE,
            num_kept=NUM_KEPT,
            max_extension=num_streams * num_tokens,
            backend=BACKEND,
        )
        self.sampler = Sampler(
            eos_token_ids=(), max_model_len=99, backend=BACKEND, default_method=method
        )
        requests = [
            Request(
                request_id=str(number),
                prompt_token_ids=PROMPT,
                sampling=SamplingParams(max_tokens=num_tokens, n=2),
                seed=first_nonce + number,
                seeded_by_user=are_mixed and number // 3 % 2 == 1,
            )
            for number in range(num_streams // 2)
        ]
        self.sequences = [
            Sequence(request, sample, arrival=2 * number + sample)
            for number, request in enumerate(requests)
            for sample in range(2)
        ]
        self.source = random.Random(first_nonce)

    # --- for whom has another policy -----------------------------------------------------------

    def verify_len(self, sequence):
        """Any, whatever was drafted."""
        return self.source.randrange(self.gamma + 1)

    def observe(self, rows, results):
        """Sees the outcomes of each round before the sequences do."""

    # --- rounds --------------------------------------------------------------------------------

    def run(self):
        """The tokens of every stream, int64 [N, num_tokens]."""
        running = self.sequences
        while running:
            self.play_round(running)
            running = [sequence for sequence in running if sequence.finish_reason is None]
        return torch.tensor([sequence.token_ids[len(PROMPT) :] for sequence in self.sequences])

    def play_round(self, running):
        """The rows of these sequences and what was found for them."""
        to_draft = [
            RowToDraft(each, self.sampler.state(each), self.sampler.method(each))
            for each in running
        ]
        found = self.draft.speculate(to_draft)
        rows = [
            Row(each, 1, 1, samples=True).verifying(found[each], self.verify_len(each))
            for each in running
        ]
        places = [
            (row.speculation.place, row.verify_len)
            for row, drafted in zip(rows, to_draft, strict=True)
            if row.verify_len and needs_probs(drafted)
        ]
        distributions = self.draft.draft_probs(places) if places else None
        results = self.sampler.sample(rows, self.target_logits(rows), distributions)
        self.observe(rows, results)
        for row, result in zip(rows, results, strict=True):
            sequence = row.sequence
            sequence.token_ids += result.token_ids
            sequence.num_computed += 1 + result.num_accepted
            sequence.num_rounds += 1
            sequence.finish_reason = result.finish_reason
        return rows, results

    def target_logits(self, rows):
        """[sum of num_logits, V], row after row."""
        places = [
            (row.sequence.arrival, len(row.sequence.token_ids) + k)
            for row in rows
            for k in range(row.num_logits)
        ]
        return self.distributions.at(self.distributions.targets, *torch.tensor(places).T).log()

    # --- what came out -------------------------------------------------------------------------

    def counts(self, tokens):
        """Of outputs, int64 [kinds, cells]; for `expected`."""
        return self.distributions.counts(cells(tokens), VOCAB_SIZE**self.num_tokens)

    def expected(self):
        """The distributions of outputs, one a kind."""
        kinds = range(self.distributions.num_kinds)
        return [self.distributions.outputs(kind, len(PROMPT), self.num_tokens) for kind in kinds]
