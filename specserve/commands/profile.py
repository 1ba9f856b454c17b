# pyright: strict
"""`specserve profile`: what forwards of the target take here, measured once and kept.

Imports no node: a service that is started for it measures, and leaves the file that this prints.
"""

import argparse
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from specserve.commands import profile_plot
from specserve.commands.service_options import add_service_options, command_line, read_config
from specserve.errors import InvalidField, Unavailable
from specserve.processes.launch import resolve_here
from specserve.processes.local_service import local_service
from specserve.processes.run_dir import make_output_folder
from specserve.processes.standard_streams import complain, require_stdout, write_stdout
from specserve.settings import draft_files
from specserve.settings.config import ResolvedConfig
from specserve.settings.hardware import probe
from specserve.settings.step_files import StepCell, StepFile, StepRecord

HELP = "measure what forwards of the target take, print and draw it"
EXAMPLES = """examples:
  specserve profile                                 the table of the model that a launch serves
  specserve profile --target smollm2 --dtype bfloat16 --topology 2+1
  specserve profile --again                         forget what is known, and measure anew
  specserve profile --png steps.png                 draw it, too; needs matplotlib
  specserve profile --json                          one JSON object, for other programs
"""

_A_ROW = 8  # tokens of one, in what is printed: a block and what stands before it
_CONTEXTS = (128, 1024, 4096)  # tokens of each row


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `profile`."""
    text = parser.add_argument
    text("--again", action="store_true", help="measure even where the times are known")
    text("--png", type=Path, metavar="FILE", help="draw milliseconds and steps a second")
    text("--json", action="store_true", help="print one JSON object")
    add_service_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the table; raises SpecserveError."""
    require_stdout()
    _check_png(arguments.png)
    config = resolve_here(read_config(arguments))
    if not config.speculation.weighs_costs or config.speculation.mode == "off":
        problem = "this service plans nothing by what forwards take; leave --speculation and "
        raise InvalidField("speculation", problem + "--verify-policy out, or choose another")
    file = StepFile(config, probe())
    if arguments.again:
        file.forget()
        draft_files.forget_all()
    record = file.read() or _measured(arguments, file)
    text = as_json(record) if arguments.json else _as_text(record, config, file.path)
    write_stdout(text)
    if arguments.png is not None:
        profile_plot.draw(record, _contexts(config), arguments.png, seconds_of)
        complain(f"drawn in {arguments.png}")
    return 0


def _check_png(path: Path | None) -> None:
    if path is None:
        return
    if path.suffix.lower() != ".png":
        raise InvalidField("--png", f"{path} does not end in .png")
    if not profile_plot.can_draw():
        raise InvalidField("--png", profile_plot.MISSING)
    make_output_folder(path.resolve().parent, "--png")


def _measured(arguments: argparse.Namespace, file: StepFile) -> StepRecord:
    with local_service(command_line(arguments)):
        pass  # it is ready once it has measured
    if (record := file.read()) is None:
        raise Unavailable(f"the service left no times in {file.path}; its log says why")
    return record


def as_json(record: StepRecord) -> str:
    """One line."""
    return msgspec.json.encode(record).decode() + "\n"


def seconds_of(record: StepRecord, cell: StepCell, context: int) -> float:
    """Of a forward whose rows have `context` tokens each, up to a block of them new."""
    num_rows = -(-cell.num_tokens // _A_ROW)
    return cell.seconds + num_rows * (record.row_s + context * record.key_s)


def _contexts(config: ResolvedConfig) -> list[int]:
    most = config.model.max_model_len or _CONTEXTS[-1]
    return [context for context in _CONTEXTS if context <= most] or [most]


def _as_text(record: StepRecord, config: ResolvedConfig, path: Path) -> str:
    contexts = _contexts(config)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("rows", "tokens"):
        table.add_column(name, justify="right")
    for context in contexts:
        table.add_column(f"ms at {context}", justify="right")
    for name in ("steps/s", "tokens/s at most", "rounds"):
        table.add_column(name, justify="right")
    for cell in record.cells:
        taken = [seconds_of(record, cell, context) for context in contexts]
        rate = 1 / taken[0]
        table.add_row(
            str(-(-cell.num_tokens // _A_ROW)),
            str(cell.num_tokens),
            *(f"{1000 * seconds:.2f}" for seconds in taken),
            f"{rate:.1f}",
            f"{rate * cell.num_tokens:.0f}",
            str(cell.num_takes),
        )
    console = Console(width=100, highlight=False)
    with console.capture() as captured:
        console.print(table)
    head = f"Forwards of {config.model.name}, {record.made_for['dtype']}, "
    head += f"{record.made_for['topology']}; contexts are tokens of each row.\n\n"
    return head + captured.get() + "\n" + _remarks(record, path)


def _remarks(record: StepRecord, path: Path) -> str:
    last = record.cells[-1].num_tokens
    lines = [
        f"A row adds {1e6 * record.row_s:.0f} µs and a key {1e9 * record.key_s:.1f} ns.",
        f"Forwards of more than {last} tokens are extrapolated until rounds have run them.",
    ]
    if record.median_error is not None:
        lines.append(
            f"{record.num_rounds} rounds refreshed it; predictions of the latest were off by "
            f"{record.median_error:.1%} in the median."
        )
    lines.append(f"Kept in {path}; --again measures anew.")
    return "\n".join(lines) + "\n"
