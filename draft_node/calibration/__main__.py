"""The process that `specserve calibrate` starts by this module's name, with a `Job` as JSON."""

import logging
import sys

import torch
from rich.console import Console
from rich.logging import RichHandler

from draft_node.calibration.run import calibrate
from draft_node.calibration.speed import measure_speed
from draft_node.training import progress
from specserve.commands.calibrate import Job
from specserve.errors import SpecserveError
from specserve.processes.process import die_with_parent
from specserve.settings.drafter_source import NGRAM

_HINTS = {
    "confidences": "",
    "speed": " (the calibration is written; --no-speed leaves the timing out)",
}
_USAGE_CODES = ("INVALID_ARGUMENT", "FAILED_PRECONDITION")


def main() -> int:
    """Run the job; 0, 1 for a failure, 2 for a job that cannot be done."""
    job = Job.decode(sys.argv[1])
    die_with_parent(job.parent_pid)
    handler = RichHandler(console=Console(stderr=True), show_path=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    logging.getLogger(progress.__name__).setLevel(logging.INFO)
    torch.set_num_threads(job.threads)
    measure = calibrate if job.stage == "confidences" else measure_speed
    try:
        measure(job, Console(highlight=False))
    except SpecserveError as error:
        hint = "" if str(job.drafter) == NGRAM else _HINTS[job.stage]
        sys.stderr.write(f"specserve: {error}{hint}\n")
        return 2 if error.code in _USAGE_CODES else 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
