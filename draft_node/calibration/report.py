"""The summary of a calibration as people read it. Decides nothing."""

from rich.table import Table

from draft_node.calibration.fit import mean_ece
from specserve.drafters.stored_calibration import Calibration, PositionFigures


def summary_table(calibration: Calibration) -> Table:
    """Figures before and after by position, of the texts that were not fitted."""
    evaluation = calibration.evaluation
    table = Table(box=None, pad_edge=False, header_style="bold")
    headings = ("position", "blocks", "survival", "T")
    for heading in (*headings, "ECE", "after", "AUROC", "after", "Brier", "after"):
        table.add_column(heading, justify="right")
    for k, (old, new) in enumerate(zip(evaluation.before, evaluation.after, strict=True)):
        table.add_row(
            str(k + 1), str(old.num_samples), f"{old.mean_target:.3f}",
            f"{calibration.temperatures[k]:.2f}", f"{old.ece:.2%}", f"{new.ece:.2%}",
            _auroc(old), _auroc(new), f"{old.brier:.4f}", f"{new.brier:.4f}",
        )  # fmt: skip
    means = (f"{mean_ece(side):.2%}" for side in (evaluation.before, evaluation.after))
    table.add_row("mean", "", "", "", *means)
    return table


def _auroc(figures: PositionFigures) -> str:
    return "-" if figures.auroc is None else f"{figures.auroc:.3f}"
