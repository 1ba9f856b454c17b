# pyright: strict
"""`specserve draft`: a draft process that services launched elsewhere share.

It is supervised as those of a launch are, and attaches to every target that it is told of, as soon
as that is there and as often as it comes back.
"""

import argparse

from specserve.commands.service_options import add_service_options, read_config
from specserve.errors import InvalidField, SpecserveError
from specserve.processes.launch import launch, resolve_here
from specserve.processes.process import ReadyReport
from specserve.processes.run_dir import runtime_root
from specserve.processes.standard_streams import complain, is_stdout_open, write_stdout
from specserve.processes.supervised_events import EXIT_REFUSED, Ending
from specserve.settings.draft_node import (
    ATTACH_TO,
    as_launched,
    parse_targets,
    resolve_draft_node,
)
from specserve.settings.hardware import probe
from specserve.telemetry import setup_logging

HELP = "draft for services that others have launched, until Ctrl-C"
EXAMPLES = """examples:
  specserve draft --attach-to 127.0.0.1:7500            for one service on this machine
  specserve draft --attach-to 10.0.0.1:7500,10.0.0.2:7500 --private-network
                                                        for two, on machines of their own
  specserve draft --attach-to 127.0.0.1:7500 --target tiny --drafter lm

each service is launched with --draft-address, the same model and the same drafter, and a D of
--topology that says how many draft nodes may attach to it:

  specserve launch --topology 1+1 --speculation async --draft-address 127.0.0.1:7500

exit codes: 0 after Ctrl-C or SIGTERM; 1 after a failure; 2 for a draft node that cannot start as
configured, or that does not fit any of its targets
"""

_SETTINGS = (
    "model.target", "model.dtype", "model.max_model_len", "model.ballast", "topology.device",
    "topology.oversubscribe", "topology.private_network", "engine.kv_memory",
    "engine.max_batch_tokens", "engine.deterministic", "engine.cuda_graphs",
    "speculation.draft_threads", "speculation.drafter", "speculation.local_head",
    "speculation.verification", "speculation.gamma", "speculation.fan_out",
    "speculation.saguaro_c", "speculation.draft_timeout_s", "telemetry.log_level",
)  # fmt: skip
_OTHER_HELP = {
    "--target": "the model of the services: folder, .gguf file, hub id, smollm2 or tiny",
    "--kv-memory": "as of a service: contexts hold as many tokens, all targets' together",
    "--draft-threads": "cores on CPU (default 1)",
    "--drafter": "that of the services: folder, .gguf file, hub id, ngram, or lm or dspark",
    "--private-network": "no stranger reaches what nodes say: for places beyond loopback",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `draft`."""
    parser.add_argument(
        ATTACH_TO,
        metavar="HOST:PORT,...",
        help="the --draft-address of every service to draft for",
    )
    add_service_options(parser, _OTHER_HELP, only=_SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    """Draft; the exit code is 0 after a stop, 1 after a failure, 2 where it was refused.

    Raises SpecserveError for what cannot start as configured.
    """
    if arguments.attach_to is None:
        problem = "is missing; type the --draft-address of each service, with commas between"
        raise InvalidField(ATTACH_TO, problem)
    wish = read_config(arguments)
    targets = parse_targets(arguments.attach_to, is_private=wish.topology.private_network)
    hardware = probe()
    launched = resolve_here(as_launched(wish, hardware), has_ranks=False)
    config = resolve_draft_node(wish, launched, hardware, targets)
    setup_logging("supervisor", config.telemetry.log_level)

    def say_ready(report: ReadyReport) -> None:
        if is_stdout_open():
            write_stdout(f"draft node is ready: {', '.join(targets)}\n")

    try:
        ending = launch(config, runtime_root=runtime_root(), on_ready=say_ready)
    except SpecserveError as error:
        ending = Ending(EXIT_REFUSED, str(error), error.code)
    if ending.error:
        complain(ending.error)
    return ending.exit_code
