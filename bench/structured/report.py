# pyright: strict
"""What is written: results.json's record, tables, and the line that sums them up."""

import msgspec

from bench.bootstrap import Interval
from bench.machine import Machine
from bench.structured.cost import Cell
from bench.structured.drafts import DraftCell
from bench.structured.validity import Validity
from bench.tables import Table, with_spread

_VALID_NOTE = (
    "Whole answers ended by themselves and are judged by other means than the library that kept "
    "them to their forms; cut ones met the limit of tokens and are beginnings of what the grammar "
    "allows, as its matcher says. Equal: token by token, text and end as without speculation. "
    "Accept length: tokens of a round that verified drafts."
)
_COST_NOTE = (
    "A token, a round: seconds with the grammar over seconds without it, same prompts, seeds and "
    "numbers of tokens, in pairs right after each other, 95 % bootstrap intervals over pairs. "
    "Target: processor time that the grammar adds to a round of all rows, in the target's "
    "process. With speculation a token's ratio has the difference of accept lengths in it."
)
_DRAFT_NOTE = (
    "Accept length: tokens of a row's round, coupled, temperature 1, intervals over prompts. "
    "Masked: drafts are drawn behind the grammar's mask, as in a service. Masks: processor time "
    "for masks and for looking at drafted tokens in a round of one row: while drafts are masked, "
    "while they are not, and without speculation. Their edit of logits is not in it."
)


class Results(msgspec.Struct, kw_only=True):
    """results.json. Parts that were not asked for, or have not been measured yet, are None."""

    model: str
    command: str
    machine: Machine
    validity: Validity | None = None
    cost: list[Cell] | None = None
    drafts: list[DraftCell] | None = None
    prompts: str = ""  # of cost and drafts, in words

    @property
    def is_sound(self) -> bool:
        are_equal = all(cell.is_equal for cell in self.drafts or ())
        return are_equal and (self.validity is None or self.validity.is_sound)


def tables(results: Results) -> list[Table]:
    """Of what is there."""
    found: list[Table] = []
    if results.validity is not None:
        found += _validity_tables(results.validity)
    if results.cost is not None:
        found.append(_cost_table(results.cost))
    if results.drafts is not None:
        found.append(_draft_table(results.drafts))
    return found


def _validity_tables(validity: Validity) -> list[Table]:
    header = ("mode", "requests", "whole", "cut", "equal", "accept length")
    rows = [
        (
            mode,
            validity.num_requests,
            each.num_whole,
            each.num_cut,
            each.num_equal,
            "" if each.accept_len is None else f"{each.accept_len:.2f}",
        )
        for mode, each in validity.by_mode.items()
    ]
    title = f"Valid and equal: {validity.at_once} at once, up to {validity.max_tokens} tokens"
    forms = [
        (name, f"{num_whole} of {count}")
        for name, (num_whole, count) in validity.whole_by_form.items()
    ]
    return [
        Table(title, header, rows, note=_VALID_NOTE),
        Table("Whole answers of each form", ("form", "whole"), forms),
    ]


def _cost_table(cells: list[Cell]) -> Table:
    header = (
        "mode", "at once", "grammar", "a token", "a round", "target, ms a round",
        "accept length", "without", "pairs",
    )  # fmt: skip
    rows = [
        (
            cell.mode,
            cell.num_rows,
            cell.grammar,
            with_spread(cell.tpot_ratio),
            with_spread(cell.round_ratio),
            "" if cell.target_ms is None else f"{cell.target_ms:+.2f}",
            _accept_len(cell.accept_len),
            _accept_len(cell.accept_len_without),
            0 if cell.tpot_ratio is None else cell.tpot_ratio.num_prompts,
        )
        for cell in cells
    ]
    return Table("What a grammar costs", header, rows, note=_COST_NOTE)


def _accept_len(found: Interval | None) -> str:
    return "" if found is None else f"{found.value:.2f}"


def _draft_table(cells: list[DraftCell]) -> Table:
    header = (
        "drafter", "grammar", "masked", "unmasked", "gain", "texts",
        "masks, ms", "unmasked", "no speculation", "masks a round",
    )  # fmt: skip
    rows = [
        (
            cell.drafter,
            cell.grammar,
            with_spread(cell.masked),
            with_spread(cell.unmasked),
            with_spread(cell.gain),
            "equal" if cell.is_equal else "**differ**",
            f"{cell.mask_ms:.2f}",
            f"{cell.unmasked_ms:.2f}",
            f"{cell.plain_ms:.2f}",
            f"{cell.num_masks:.1f}",
        )
        for cell in cells
    ]
    return Table("Accept length with and without the drafts' mask", header, rows, note=_DRAFT_NOTE)


def verdict(results: Results) -> str:
    """In one line, of what is there."""
    parts: list[str] = []
    if (validity := results.validity) is not None:
        count = validity.num_requests
        bad = f"{len(validity.problems)} INVALID, first: {validity.problems[:1]}"
        valid = bad if validity.problems else f"all of {count} valid in every mode"
        worst = min(each.num_equal for each in validity.by_mode.values())
        parts.append(f"{valid}; {worst} of {count} equal with speculation")
    for cell in results.cost or ():
        if cell.mode == "off":
            parts.append(f"{cell.grammar}, {cell.num_rows} at once: {with_spread(cell.tpot_ratio)}")
    if results.drafts is not None:
        are_equal = all(cell.is_equal for cell in results.drafts)
        parts.append("texts equal with and without the drafts' mask" if are_equal else "DIFFER")
    return "; ".join(parts)


def heading(results: Results) -> list[str]:
    """What stands above the tables."""
    found = ["# Answers in a form under speculation", f"**{verdict(results)}**"]
    found.append(" ".join(part for part in (f"{results.model}.", results.prompts) if part))
    found.append(f"`{results.command}`, {results.machine.line}")
    if results.validity is not None and results.validity.problems:
        found.append("\n".join(f"* {problem}" for problem in results.validity.problems[:20]))
    return found
