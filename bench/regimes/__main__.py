"""`python -m bench.regimes`: plain, synchronous and asynchronous decoding against each other.

    python -m bench.regimes                              everything: a night
    python -m bench.regimes --quick                      at most 15 minutes
    python -m bench.regimes --arms sync-lm async-lm --ballast 100M --batch-sizes 1
    python -m bench.regimes --quick --device cuda --ballast 100M    one GPU or several

Real services on their own cores, asked over gRPC. Writes results.json and report.md to --out, again
after every setting, and plots in the end; definitions are in bench/README.md.
"""

import argparse
import asyncio
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from bench.command_line import TARGET_HELP, add_renamed_flag, default_ballasts, num_params
from bench.domains import DOMAINS
from bench.drafter_choice import (
    DFLASH,
    DSPARK,
    DSPARK_ASYNC,
    LANGUAGE_MODEL,
    LOCAL_HEAD,
    DrafterChoice,
    parse_choice,
)
from bench.prompt_choice import add_domain_option, add_prompt_options, read_domains, read_prompts
from bench.regimes.plan import FAMILIES, FULL, QUICK, SAMPLING_FIELDS, Plan, read_sampling
from bench.regimes.plots import draw
from bench.regimes.report import TITLE, conditions, tables, verdict
from bench.regimes.results import Results
from bench.regimes.run import Options, Run
from bench.writing import (
    make_results_folder,
    show_failure,
    show_tables,
    write_results,
    write_tables,
)
from specserve.errors import InvalidField, SpecserveError
from specserve.models.config import DTYPES
from specserve.sampling.verification.method import VerificationMethod
from specserve.settings.drafter_source import NGRAM, shipped_drafters
from specserve.settings.target_source import locate_target

_NAME = "bench.regimes"
_LABELS = (DSPARK, DSPARK_ASYNC, DFLASH, LOCAL_HEAD, LANGUAGE_MODEL, NGRAM)


def build_parser() -> argparse.ArgumentParser:
    """The command line of the bench."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {_NAME}", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="less of everything: at most 15 minutes")
    add("--out", type=Path, default=Path("results/regimes"), metavar="DIR")
    add("--target", metavar="MODEL", help=TARGET_HELP)
    add("--arms", nargs="+", choices=FAMILIES, metavar="ARM",
        help=f"beside plain decoding: {', '.join(FAMILIES)}")  # fmt: skip
    add("--drafter", nargs="+", action="extend", default=[], metavar="LABEL=NAME|FOLDER[+HEAD]",
        help=f"what stands for {', '.join(_LABELS)} (default: the target's own)")  # fmt: skip
    add("--ballast", nargs="+", metavar="PARAMS", help='sizes to pad the target to; "none"')
    add("--temperatures", type=float, nargs="+", metavar="T")
    add("--sampling", nargs="+", default=[], metavar="FIELD=VALUE",
        help=f"of every request, besides: {', '.join(SAMPLING_FIELDS)}")  # fmt: skip
    add(
        "--methods",
        nargs="+",
        choices=[method.value for method in VerificationMethod],
        metavar="METHOD",
    )
    add_renamed_flag(parser, "--rules", "--methods")
    add("--batch-sizes", type=int, nargs="+", metavar="B")
    add("--fan-outs", type=int, nargs="+", metavar="N", help="budgets of the hit-rate curves")
    add("--device", default="cpu", choices=("cpu", "cuda"), help="of targets and drafts")
    add("--dtype", default="float32", choices=DTYPES, help="of the target, as of specserve launch")
    add("--kv-dtype", choices=DTYPES, help="of keys and values, as of specserve launch")
    add_prompt_options(parser, f"{FULL.num_tokens}, quick {QUICK.num_tokens}")
    add_domain_option(parser, DOMAINS)
    add("--unpinned", action="store_true", help="share cores with whoever runs: no times, a trial")
    return parser


def read_plan(arguments: argparse.Namespace) -> Plan:
    """What the flags ask for. Raises InvalidField."""
    methods = arguments.methods and [VerificationMethod(method) for method in arguments.methods]
    given = {
        "families": arguments.arms,
        "ballasts": arguments.ballast,
        "domains": read_domains(arguments),
        "temperatures": arguments.temperatures,
        "methods": methods,
        "batch_sizes": arguments.batch_sizes and sorted(arguments.batch_sizes),
        "fan_outs": arguments.fan_outs,
        "num_prompts": arguments.num_prompts,
        "num_tokens": arguments.max_tokens,
    }
    changes = {
        name: tuple(dict.fromkeys(value)) if isinstance(value, list) else value
        for name, value in given.items()
        if value is not None
    }
    if "batch_sizes" in changes:
        changes["side_batch_sizes"] = changes["batch_sizes"]
    plan = msgspec.structs.replace(QUICK if arguments.quick else FULL, **changes)
    few = min(plan.num_side_prompts, plan.num_prompts)
    plan = msgspec.structs.replace(plan, num_side_prompts=few)
    plan = msgspec.structs.replace(plan, sampling=read_sampling(arguments.sampling))
    plan.check()
    for ballast in plan.ballasts:
        num_params(ballast)
    return plan


def read_drafters(words: Sequence[str], target: Path) -> dict[str, DrafterChoice]:
    """By label: those that come with the target, else prompt lookup; and what the flags say.

    Raises InvalidField.
    """
    known = shipped_drafters(target)
    defaults = [name for name in (DSPARK, DSPARK_ASYNC, DFLASH, LANGUAGE_MODEL) if name in known]
    if DFLASH in known and LOCAL_HEAD in known:
        defaults.append(f"{LOCAL_HEAD}={DFLASH}+{LOCAL_HEAD}")
    defaults += [] if defaults or words else [NGRAM]
    choices = {choice.label: choice for choice in map(parse_choice, [*defaults, *words])}
    for label in choices:
        if label not in _LABELS:
            raise InvalidField("--drafter", f"{label!r} is none of {', '.join(_LABELS)}")
    return choices


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write; 0 unless something failed (a missed goal is a result, not a failure)."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    console = Console(stderr=True)
    try:
        target = locate_target(arguments.target)
        plan = read_plan(arguments)
        chosen = None if plan.domains else read_prompts(arguments, plan.num_prompts)
        if arguments.ballast is None:
            ballasts = default_ballasts(target, plan.ballasts)
            plan = msgspec.structs.replace(plan, ballasts=ballasts)
        options = Options(
            target=target,
            plan=plan,
            drafters=read_drafters(arguments.drafter, target),
            ballasts={name: num_params(name) for name in plan.ballasts},
            is_pinned=not arguments.unpinned,
            device=arguments.device,
            dtype=arguments.dtype,
            kv_dtype=arguments.kv_dtype,
            command=shlex.join(["python", "-m", _NAME, *words]),
            chosen=chosen,
        )
        for choice in options.drafters.values():
            choice.located(target)  # a name that is none fails before anything is measured
        make_results_folder(arguments.out)
        with asyncio.Runner() as runner:
            run = Run(options, runner, console, lambda found: write(found, arguments.out))
            results = run.results_of_everything()
    except (SpecserveError, OSError) as error:
        show_failure(_NAME, error)
        return 1
    plots = draw(results.rows, arguments.out)
    write(results, arguments.out, [path.name for path in plots])
    show_tables(tables(results), verdict(results))
    return 0 if results.is_complete else 130


def write(results: Results, out: Path, plots: Sequence[str] = ()) -> None:
    """results.json and report.md of what there is so far."""
    write_results(results, out)
    write_tables([TITLE, verdict(results), conditions(results)], tables(results, plots), out)


if __name__ == "__main__":
    sys.exit(main())
