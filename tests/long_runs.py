"""Which tests `make test` leaves to `make test-long`: those that `left_to_long_runs.txt` names."""

import re
from collections.abc import Sequence
from pathlib import Path

_LIST = Path(__file__).with_name("left_to_long_runs.txt")


def lines() -> list[str]:
    """Those that name tests, as `is_named` reads them."""
    text = _LIST.read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def is_named(node_id: str, line: str) -> bool:
    """Whether a line names this test: by its whole id, by all but its parameters, or by its file.

    `*` in a line stands for anything.
    """
    pattern = re.compile(".*".join(map(re.escape, line.split("*"))))
    ids = node_id, node_id.partition("[")[0], node_id.partition("::")[0]
    return any(pattern.fullmatch(each) for each in ids)


def named(node_ids: Sequence[str], lines: Sequence[str]) -> set[str]:
    """Those that any line names."""
    of_file: dict[str, list[str]] = {}
    for node_id in node_ids:
        of_file.setdefault(node_id.partition("::")[0], []).append(node_id)
    return {
        node_id
        for line in lines
        for node_id in of_file.get(line.partition("::")[0], ())
        if is_named(node_id, line)
    }


def without_meaning(node_ids: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Lines that name no test of a file that is there: what they named has another name now."""
    files = {node_id.partition("::")[0] for node_id in node_ids}
    return [
        line for line in lines if line.partition("::")[0] in files and not named(node_ids, [line])
    ]
