"""Tables of edits, filled and applied on this CPU: the logits of `apply_edits`, to the last bit."""

import random

import pytest
import torch

from specserve.backends.cuda.edit_tables import apply_tables
from specserve.backends.cuda.round_shape import RoundShape
from specserve.backends.cuda.round_tables import DeviceTables, HostTables
from specserve.sampling.batch import LogitEdits, apply_edits
from specserve.sampling.verification.batch import RowToVerify, by_ratio
from specserve.sampling.verification.method import VerificationMethod
from tests.device.random_rounds import Kinds, random_round
from tests.specserve.sampling.test_sampling import state

COUPLED = VerificationMethod.COUPLED


class Tables:
    """Those of every shape, which rounds are written to one after another."""

    def __init__(self) -> None:
        self._found: dict[RoundShape, HostTables] = {}

    def edited(self, logits: torch.Tensor, rows: list[RowToVerify]) -> torch.Tensor:
        """What a graph samples from; its padding is of some round before."""
        shape = RoundShape.of(logits, rows, by_ratio(rows), None)
        tables = self._found.setdefault(shape, HostTables(shape))
        tables.fill(rows, by_ratio(rows))
        padded = torch.full((shape.num_logits, shape.vocab_size), 7.0)
        padded[: len(logits)] = logits
        on_device = DeviceTables.over(tables.words.clone(), shape)
        if shape.edits is None:
            return logits
        found = apply_tables(padded, on_device.edits, on_device.rows.row_of)
        return found[: len(logits)]


def defined(logits: torch.Tensor, rows: list[RowToVerify]) -> torch.Tensor:
    return apply_edits(
        logits, LogitEdits.of([s for row in rows for s in row.state.along(row.drafted)])
    )


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    # Adding the zeros of a grammar's mask to a row without one turns -0.0 into 0.0.
    assert torch.equal((ours + 0.0).nan_to_num(), (theirs + 0.0).nan_to_num())


@pytest.mark.parametrize("seed", range(4))
def test_edits_of_any_rows_are_those_of_their_definition(seed: int):
    source, tables, num_edited = random.Random(seed), Tables(), 0
    for _ in range(60):
        kinds = Kinds((COUPLED,), greedy=True, edits=True, grammars=source.random() < 0.5)
        logits, rows, _ = random_round(source, kinds)
        for row in rows:  # tables are filled up with token 0
            if row.state.grammar is None and source.random() < 0.5:
                row.state.append(0)
        expected = defined(logits, rows)
        assert_same(tables.edited(logits, rows), expected)
        num_edited += not torch.equal(expected, logits)
    assert num_edited > 40
    assert len(tables._found) < 100  # some were met again, with what others had left in them


@pytest.mark.parametrize("drafted", [(), (2,), (0,), (0, 5, 0)])
def test_a_row_without_drafts_keeps_its_penalties_beside_one_with_drafts(drafted: tuple[int, ...]):
    """Of token 0 as of others, which is what tables are filled up with."""
    logits = torch.linspace(-2, 2, 16).flip(0).repeat(2 + len(drafted), 1)
    rows = [
        RowToVerify(COUPLED, state(prompt=[0, 3], repetition_penalty=2.0), ()),
        RowToVerify(COUPLED, state(prompt=[4], repetition_penalty=3.0), drafted),
    ]
    found = Tables().edited(logits, rows)
    assert found[0, 0] == logits[0, 0] / 2
    assert_same(found, defined(logits, rows))
