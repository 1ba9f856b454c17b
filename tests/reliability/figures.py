"""What a test of a fault has measured, kept for docs/reliability.md.

Nothing is kept unless `SPECSERVE_RELIABILITY_FIGURES` names a folder: `make test-long` does.
"""

# pyright: strict

import json
import os
from pathlib import Path

FOLDER_VARIABLE = "SPECSERVE_RELIABILITY_FIGURES"


def keep(row: int, api: str, **figures: float | str) -> None:
    """One file for row `row` of tests/reliability/rows.py, asked over `api` ("gRPC" or "HTTP").

    Names that docs/reliability.md has columns for: `requests`, `failed`, `wrong`, `detection_s`,
    `recovery_s`, and tokens per second `before`, `during` and `after`. Others are listed as said.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        return
    path = Path(folder) / f"{row:02d}-{api}.json"
    known = json.loads(path.read_text()) if path.exists() else {"row": row, "api": api}
    path.write_text(json.dumps(known | figures, indent=1) + "\n")
