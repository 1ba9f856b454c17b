# pyright: strict
"""A table once, in two forms: Markdown for the report, rich for the terminal."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.markup import escape
from rich.table import Table as RichTable

from bench.bootstrap import Interval


@dataclass(frozen=True)
class Table:
    """Rows of text under a title; `note` says what the columns mean."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""
    plots: Sequence[str] = field(default=())

    def markdown(self) -> str:
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        table = "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
        parts = [f"## {self.title}", table, self.note]
        parts += [f"![{name}]({name})" for name in self.plots]
        return "\n\n".join(part for part in parts if part)

    def rich(self) -> RichTable:
        table = RichTable(
            title=self.title, title_justify="left", box=None, pad_edge=False, header_style="bold"
        )
        for place, heading in enumerate(self.header):
            table.add_column(heading, justify="left" if place == 0 else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*(escape(str(cell)) for cell in row))
        return table


def with_spread(found: Interval | None, digits: int = 2) -> str:
    """`1.23 [1.20, 1.26]`; a dash for what was not measured."""
    if found is None:
        return "-"
    value, low, high = (f"{x:.{digits}f}" for x in (found.value, found.low, found.high))
    return f"{value} [{low}, {high}]"
