"""Tables of Markdown, as the generated pages write them."""

from collections.abc import Iterator


def cell(text: str) -> str:
    """A text as it can stand in a row."""
    return " ".join(text.split()).replace("|", "\\|")


class Table:
    """Rows below a heading; cells are Markdown already."""

    def __init__(self, *heads: str) -> None:
        self._rows = [heads, ("---",) * len(heads)]

    def add(self, *cells: str) -> None:
        """One more row, of as many cells as there are heads."""
        assert len(cells) == len(self._rows[0]), cells
        self._rows.append(cells)

    def lines(self) -> Iterator[str]:
        """Of the whole table."""
        for number, row in enumerate(self._rows):
            if number == 1:
                yield f"|{'|'.join(row)}|"
            else:
                yield f"| {' | '.join(row)} |".replace("|  |", "| |").replace("|  |", "| |")
