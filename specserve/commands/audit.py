# pyright: strict
"""`specserve audit`: is it lossless? Starts the services to compare, or asks a running one."""

import argparse
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from specserve.audit.report import Plan, Status
from specserve.commands.audit_report import as_json, print_report
from specserve.commands.connection import (
    add_connection_options,
    refuse_idle_settings,
    running_service,
)
from specserve.commands.service_options import command_line, overrides
from specserve.errors import InvalidField
from specserve.processes.launch import resolve_here
from specserve.processes.local_service import local_service
from specserve.processes.standard_streams import named, require_stdout, write_stdout
from specserve.settings.config import DEFAULT_MODE, SpeculationConfig, load_config
from specserve.settings.topology import parse_topology

if TYPE_CHECKING:
    from specserve.access import Access
    from specserve.audit.run import Audited, Service

HELP = "check that speculation leaves the output as it is"
EXAMPLES = """examples:
  specserve audit                                      the model and drafter that a launch serves
  specserve audit --quick --drafter ngram              about a minute, and less sure
  specserve audit --target ./Qwen3-4B --drafter ./dspark-4b --verification rejection
  specserve audit --topology 1+1                       with drafts from a process of their own
  specserve audit --connect 127.0.0.1:7411 --json      a running service, as it is
"""

_METHODS = ("rejection", "foreseeable")  # which leave the distribution alone, not the text
_THOROUGH = {"num_requests": 500, "num_samples": 40_000, "num_candidates": 24}
_QUICK = {"num_requests": 60, "num_samples": 3_200, "num_candidates": 8}
_QUICK_HELP = "a tenth of the questions, every draft verified; only large errors show"
_SAMPLES_A_LONG_ANSWER = 32  # of three tokens, which take longer
_MODE, _METHOD = "speculation.mode", "speculation.verification"
_SURVIVAL = "speculation.min_survival"
_TOPOLOGY = "topology.topology"
_OTHER_HELP = {
    "--speculation": "sync, async or auto (default: async with draft processes, else sync)",
    "--verification": "rejection, foreseeable or coupled (default: the first two, each in turn)",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `audit`."""
    add = parser.add_argument
    add("--quick", action="store_true", help=_QUICK_HELP)
    add("--json", action="store_true", help="print one JSON object at the end")
    add("--requests", dest="num_requests", type=_count, metavar="N", help="seeded ones (500)")
    add("--samples", dest="num_samples", type=_count, metavar="N", help="unseeded ones (40000)")
    add("--seed", type=int, default=0, metavar="N", help="of the questions (default 0)")
    add_connection_options(parser, _OTHER_HELP)


def run(arguments: argparse.Namespace) -> int:
    """Audit; the exit code is 0 only if every check passed. Raises SpecserveError."""
    refuse_idle_settings(arguments)
    require_stdout()
    # gRPC is slow to import, and --help needs none.
    from specserve.audit.run import Audited, run_audit

    plan = _plan(arguments)
    with _Stages() as stages:
        if arguments.connect is not None:
            running = partial(nullcontext, running_service(arguments))
            reference, audited = running, [Audited(running)]
        else:
            reference, audited = _own_services(arguments, stages)
        report = run_audit(plan, reference, audited, stages)
    if arguments.json:
        write_stdout(msgspec.json.encode(as_json(report, plan)).decode() + "\n")
    else:
        with named("stdout"):
            print_report(report)
    return 0 if report.verdict is Status.PASSED else 1


def _plan(arguments: argparse.Namespace) -> Plan:
    sizes = dict(_QUICK if arguments.quick else _THOROUGH)
    for name in ("num_requests", "num_samples"):
        if (given := getattr(arguments, name)) is not None:
            sizes[name] = given
    num_long = -(-sizes["num_samples"] // _SAMPLES_A_LONG_ANSWER)
    return Plan(**sizes, num_prompts=1, num_long_answers=num_long, seed=arguments.seed)


def _own_services(
    arguments: argparse.Namespace, stages: "_Stages"
) -> tuple["Service", list["Audited"]]:
    """One that decodes plainly, and two for each method. Raises InvalidField before any starts."""
    from specserve.audit.run import Audited

    flags, given = command_line(arguments), overrides(arguments)
    config = load_config(arguments.config, given)
    topology = parse_topology(config.topology.topology)
    wanted, method = config.speculation.mode, config.speculation.verification
    if wanted == "off":
        raise InvalidField("--speculation", "is off; there would be nothing to audit")
    if wanted == DEFAULT_MODE and _MODE not in given:  # which might not speculate at all
        wanted = "async" if topology.num_draft_processes else "sync"
    is_default = method == SpeculationConfig().verification and _METHOD not in given
    methods = _METHODS if is_default else (method,)
    # Equal text is promised for arithmetic that does not depend on the batch.
    settings = {"engine.deterministic": "true"} | {
        k: v for k, v in given.items() if k == "engine.deterministic"
    }
    plain = settings | {_MODE: "off", _TOPOLOGY: f"{topology.num_target_ranks}+0"}
    drafted = [settings | {_MODE: wanted, _METHOD: method} for method in methods]
    for changes in drafted:
        resolve_here(load_config(arguments.config, given | changes))
    started = partial(_started, flags, stages)
    reference = partial(started, plain, "starting a service, without drafts")
    if config.speculation.min_survival is not None:
        return reference, [
            Audited(partial(started, changes, _text(changes))) for changes in drafted
        ]
    every = [changes | {_SURVIVAL: "0"} for changes in drafted]
    every_draft = [partial(started, c, _text(c) + ", every draft verified") for c in every]
    if arguments.quick:  # no time to start a model once more
        return reference, [Audited(service) for service in every_draft]
    as_they_are = [partial(started, c, _text(c)) for c in drafted]
    return reference, [Audited(*pair) for pair in zip(as_they_are, every_draft, strict=True)]


def _text(changes: dict[str, str]) -> str:
    return f"starting a service, {changes[_METHOD]}"


@contextmanager
def _started(
    flags: list[str], stages: "_Stages", changes: dict[str, str], text: str
) -> Generator["Access"]:
    from specserve.access import Access

    words = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    stages.begin(text)
    with local_service([*flags, *words]) as address:
        yield Access(address)


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("has to be at least 1")
    return value


class _Stages:
    """One line on stderr: a bar on a terminal, elsewhere a line for every stage."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )

    def __enter__(self) -> "_Stages":
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def begin(self, text: str, total: int | None = None) -> Callable[[], None]:
        if not self._console.is_terminal:
            self._console.print(text if total is None else f"{text}: {total}", highlight=False)
            return lambda: None
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        task = self._bar.add_task(text, total=total)
        return lambda: self._bar.advance(task)
