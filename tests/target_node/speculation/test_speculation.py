"""What decides how many drafts of a row are verified: never what they are, and nobody for ever."""

import itertools
import random

import pytest

from specserve.sampling.verification.method import VerificationMethod
from specserve.types import Request, SamplingParams, Speculation
from target_node.blocks import BlockPool
from target_node.planning.acceptance import Acceptance
from target_node.planning.admission import Admission
from target_node.planning.draft_pace import DraftPace
from target_node.planning.policies import ThresholdPolicy
from target_node.planning.round_prices import RoundCosts, RoundPrices
from target_node.sampler import Sampler
from target_node.scheduler import Row, Scheduler
from target_node.sequence import Sequence
from target_node.speculation.source import SynchronousSpeculation
from tests.backends.chosen import BACKEND

BLOCK_SIZE = 4


class ScriptedDraft:
    """In place of `ColocatedDraft`: one speculation a row, in the order of rows."""

    name = "scripted"
    catching_up = frozenset()

    def __init__(self, gamma: int, *, is_blind: bool = False) -> None:
        self.gamma, self.is_blind = gamma, is_blind
        self.speculations: list[Speculation] = []

    def speculate(self, rows, *, threshold=None, most=None):
        self.threshold, self.most = threshold, most
        return {row.sequence: spec for row, spec in zip(rows, self.speculations, strict=True)}


class Round:
    """Decoding rows of given lengths; `spare` blocks are free besides one for each of them."""

    def __init__(
        self,
        lengths: list[int],
        *,
        places: int,
        spare: int,
        gamma: int,
        prices: RoundPrices | None = None,
        max_positions: int | None = None,
        budget: ThresholdPolicy | None = None,
        is_asynchronous: bool = False,
        drafts: DraftPace | None = None,
        may_pause: bool = False,
        acceptance: Acceptance | None = None,
    ) -> None:
        held = [-(-length // BLOCK_SIZE) for length in lengths]
        self.pool = BlockPool(1 + sum(held) + len(lengths) + spare, BLOCK_SIZE, prefix_cache=False)
        self.scheduler = Scheduler(
            self.pool, max_batch_rows=len(lengths), max_batch_tokens=len(lengths) + places
        )
        self.rows = [self._row(i, lengths[i], held[i]) for i in range(len(lengths))]
        self.draft = ScriptedDraft(gamma)
        sampler = Sampler(
            eos_token_ids=(),
            max_model_len=1000,
            backend=BACKEND,
            default_method=VerificationMethod.REJECTION,
        )
        self.admission = Admission(
            acceptance=acceptance or Acceptance(gamma),
            scheduler=self.scheduler,
            sampler=sampler,
            budget=budget or ThresholdPolicy(),
            costs=None if prices is None else RoundCosts(prices, drafts, may_pause),
            max_positions=max_positions,
            is_asynchronous=is_asynchronous,
        )
        self.source = SynchronousSpeculation(self.draft, self.admission)

    def _row(self, index: int, length: int, num_blocks: int) -> Row:
        request = Request(
            request_id=f"r{index}",
            prompt_token_ids=[1] * (length - 1),
            sampling=SamplingParams(max_tokens=100),
            seed=1,
        )
        sequence = Sequence(request, sample_index=0, arrival=index)
        sequence.token_ids.append(2)
        sequence.num_computed = length - 1
        sequence.block_ids = self.pool.allocate(num_blocks)
        self.scheduler.running.append(sequence)
        return Row(sequence, num_tokens=1, num_logits=1, samples=True)

    def verify_lens(self, speculations: list[Speculation]) -> list[int]:
        """Of one round; the rows keep the blocks that they need for it."""
        self.draft.speculations = speculations
        held = [len(row.sequence.block_ids) for row in self.rows]
        rows = self.source.propose(self.rows)
        assert [row.sequence for row in rows] == [row.sequence for row in self.rows]
        for row, before in zip(rows, held, strict=True):
            needed = self.pool.num_blocks_for(len(row.sequence.token_ids) + row.verify_len)
            assert len(row.sequence.block_ids) == max(before, needed)
        return [row.verify_len for row in rows]

    def end(self) -> None:
        """Every draft is rejected, and nothing follows."""
        for row in self.rows:
            self.pool.release(row.sequence.block_ids[self._num_needed(row) :])
            del row.sequence.block_ids[self._num_needed(row) :]

    def _num_needed(self, row: Row) -> int:
        return self.pool.num_blocks_for(len(row.sequence.token_ids))


@pytest.mark.parametrize(("max_positions", "verified"), [(None, [3, 3, 3]), (9, [3, 1]), (7, [2])])
def test_nothing_is_verified_beyond_the_positions_of_a_drafter(max_positions, verified):
    """Rows that it cannot draft behind are not even asked for: they cost no time."""
    subject = Round([5, 8, 9], places=9, spare=9, gamma=3, max_positions=max_positions)
    found = subject.verify_lens([Speculation((3, 4, 5)) for _ in verified])
    assert found == [*verified, 0, 0, 0][:3]


@pytest.mark.parametrize("turn", [0, 1])
def test_a_drafted_token_does_not_decide_through_another_rows_blocks_on_its_own(turn):
    """One spare block and three places: who gets the last place would take the block too."""

    def num_verified(token: int) -> int:
        subject = Round([7, 8], places=3, spare=1, gamma=2)
        sure, doubtful = Speculation((3, 4), (0.95, 0.52)), Speculation((0, 5), (0.9, 0.1))
        for _ in range(turn):
            subject.verify_lens([sure, doubtful])
            subject.end()
        # A causal confidence head: its second entry knows the first token.
        own = Speculation((token, 5), (0.9, 0.9 if token else 0.1))
        return min(1, subject.verify_lens([sure, own])[1])

    assert num_verified(0) == num_verified(1)


@pytest.mark.parametrize(("places", "may_end"), [(4, True), (3, False)])
def test_no_chain_ends_by_what_was_drafted_where_blocks_compete_for_places(places, may_end):
    """A token that ends its neighbours' chains would make room for itself."""
    subject = Round([7, 8], places=places, spare=9, gamma=2, prices=RoundPrices(BACKEND))
    subject.verify_lens([Speculation((3, 4), (0.95, 0.9)), Speculation((0, 5), (0.9, 0.8))])
    assert subject.draft.threshold.may_look is may_end


GAMMA = 3


def causal(row: int, token_ids: tuple[int, ...], rng_seed: int) -> Speculation:
    """Confidences that know the tokens before theirs, and an end after the first 1 1."""

    def confidence(k: int) -> float:
        return random.Random(f"{rng_seed} {row} {token_ids[:k]}").choice([0.1, 0.6, 0.8, 1.0])

    ends = [k + 1 for k in range(1, GAMMA) if token_ids[k - 1 : k + 1] == (1, 1)]
    length = min(ends, default=GAMMA)
    return Speculation(token_ids[:length], tuple(confidence(k) for k in range(GAMMA)))


@pytest.mark.parametrize("seed", range(40))
def test_whether_a_token_is_verified_does_not_depend_on_it_nor_on_later_ones(seed):
    rng = random.Random(seed)
    lengths = [rng.randint(6, 8) for _ in range(2)]
    limits = {"places": rng.randint(2, 5), "spare": 1, "gamma": GAMMA}
    outcomes: dict[tuple, set[bool]] = {}
    for drafts in itertools.product(itertools.product((0, 1), repeat=GAMMA), repeat=2):
        subject = Round(lengths, **limits)
        lens = subject.verify_lens([causal(r, drafts[r], seed) for r in range(2)])
        for row, k in itertools.product(range(2), range(GAMMA)):
            known = (row, k, drafts[row][:k], drafts[1 - row])
            outcomes.setdefault(known, set()).add(lens[row] > k)
    assert [known for known, seen in outcomes.items() if len(seen) > 1] == []


@pytest.mark.parametrize("short", [{"places": 2, "spare": 9}, {"places": 9, "spare": 2}])
def test_equal_rows_take_turns_where_places_or_blocks_are_short(short):
    subject = Round([8] * 5, **short, gamma=1)
    counts = [0] * 5
    for _ in range(10):
        lens = subject.verify_lens([Speculation((3,), (0.5,))] * 5)
        assert sum(lens) == 2
        counts = [count + length for count, length in zip(counts, lens, strict=True)]
        subject.end()
    assert counts == [4] * 5


def test_drafts_leave_every_running_row_a_block():
    subject = Round([8, 8, 8], places=9, spare=1, gamma=3)
    assert sum(subject.verify_lens([Speculation((3, 4, 5), None)] * 3)) == 3
    assert subject.pool.num_free == 3


def test_whether_a_row_was_drafted_for_does_not_move_another_rows_blocks():
    """One spare block: who is late, for whatever reason, must not decide on its neighbour."""
    speculation = Speculation((3, 4, 5), (0.9, 0.9, 0.9))

    def verified(drafted: list[int]) -> int:
        subject = Round([8, 8], places=9, spare=1, gamma=3)
        found = {subject.rows[place].sequence: speculation for place in drafted}
        return subject.admission.admit(subject.rows, found)[1].verify_len

    assert verified([0, 1]) == verified([1])


@pytest.mark.parametrize(("length", "verified"), [(990, 6), (996, 3), (998, 1), (999, 0)])
def test_no_token_is_verified_that_the_answer_has_no_room_for(length, verified):
    """Contexts hold 1,000 tokens, of which the last one is the target's own."""
    subject = Round([length], places=9, spare=9, gamma=6)
    assert subject.verify_lens([Speculation((3,) * 6)]) == [verified]
