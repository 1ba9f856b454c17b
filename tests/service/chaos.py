"""Draft processes of a real service killed, stopped, stalled and lied to while it answers requests.

    python -m tests.service.chaos --topology 1+1 --requests 1000 --kills 50 --stops 20 \
        --garbage 10000

compares every answer with that of plain decoding: of the service left alone, then of the service
under attack, as often as the attack lasts. Prints one JSON object; exits with 1 if a request
failed, a token differs, a draft stayed away or the attack itself came to grief. What there is of
times is printed and verified by the reader: they depend on what else the machine does.
"""

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from tests.exactness.workload import (
    MAX_MODEL_LEN,
    Outcome,
    SeededRequest,
    differing,
    run,
    seeded_requests,
)
from tests.service.blows import DRAFT_TIMEOUT_S, Chaos, Damage
from tests.service.draft_watch import DraftWatch
from tests.service.launched import Launched

# A service must not outlive whoever attacks it.
_COMMON = ("--max-model-len", str(MAX_MODEL_LEN), "--parent-pid", str(os.getpid()))

log = logging.getLogger(__name__)


@dataclass
class Comparison:
    """Answers against those of plain decoding."""

    num_requests: int = 0
    num_failed: int = 0
    num_wrong: int = 0
    num_lookups: int = 0  # of the service meanwhile
    num_hits: int = 0


def compare(address: str, plain: list[Outcome], requests: list, shuffle_seed: int) -> Comparison:
    """One pass over all requests. One that fails counts for all that were still under way."""
    comparison = Comparison(num_requests=len(requests))
    try:
        found = run(address, requests, concurrency=8, shuffle_seed=shuffle_seed)
    except Exception:
        log.exception("a request failed")
        comparison.num_failed = 1
        return comparison
    comparison.num_wrong = len(differing(plain, found))
    return comparison


def attack(
    launched: Launched, plain: list[Outcome], requests: list, **schedule: int
) -> tuple[Comparison, Damage]:
    """Passes over the requests while the schedule lasts, and one at least."""
    address = launched.address()
    total = Comparison()
    watch = DraftWatch(address)
    try:
        assert watch.wait_until_serving()
        before = watch.statistics()
        with Chaos(launched, watch, **schedule) as chaos:
            while total.num_requests == 0 or not chaos.is_over:
                one = compare(address, plain, requests, total.num_requests)
                total.num_requests += one.num_requests
                total.num_failed += one.num_failed
                total.num_wrong += one.num_wrong
        after = watch.statistics()
        total.num_lookups = after.num_lookups - before.num_lookups
        total.num_hits = after.num_hits - before.num_hits
        return total, chaos.damage
    finally:
        watch.close()


def plainly(requests: list, *settings: str) -> list[Outcome]:
    """By a service without drafts, which ends before this returns."""
    flags = [word for setting in settings for word in ("--set", setting)]
    launched = Launched(*_COMMON, "--oversubscribe", "--speculation", "off", *flags)
    try:
        return run(launched.address(), requests, concurrency=8)
    finally:
        end(launched)


def launch_async(topology: str = "1+1", *settings: str) -> Launched:
    """With few outcomes and no waiting, and a target that takes long enough to draft meanwhile."""
    settings = (
        "model.ballast=60M",
        "speculation.fan_out=8",
        "speculation.miss_policy=skip",
        f"speculation.draft_timeout_s={DRAFT_TIMEOUT_S}",
        *settings,
    )
    flags = [word for setting in settings for word in ("--set", setting)]
    mode = ["--topology", topology, "--speculation", "async", "--oversubscribe"]
    return Launched(*_COMMON, *mode, *flags)


@contextmanager
def launched_async(*settings: str) -> Iterator[Launched]:
    """A `1+1` that is told to stop in the end, and has to end well."""
    made = launch_async("1+1", *settings)
    try:
        made.address()
        yield made
    finally:
        if made.process.poll() is None:
            made.process.send_signal(signal.SIGTERM)
        code = made.exit_code(90)
        assert made.process.stdout
        made.process.stdout.close()
    assert code == 0, made.output


def end(launched: Launched) -> None:
    launched.process.send_signal(signal.SIGTERM)
    launched.exit_code(90)
    assert launched.process.stdout
    launched.process.stdout.close()


def shortened(request: SeededRequest, max_tokens: int) -> SeededRequest:
    """The same, with a shorter answer where it would be longer."""
    most = min(request.options["max_tokens"], max_tokens)
    return replace(request, options=request.options | {"max_tokens": most})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", default="1+1")
    parser.add_argument("--requests", type=int, default=1000, help="of one pass")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer; 8 or more")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--stops", type=int, default=20, help="and as many shorter stalls")
    parser.add_argument("--garbage", type=int, default=10_000, help="frames")
    parser.add_argument("--ballast", default="60M", help="of the target")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> int:
    options = parse()
    logging.basicConfig(level="INFO", stream=sys.stderr)
    requests = [
        shortened(request, options.max_tokens)
        for request in seeded_requests(options.requests, options.seed)
    ]
    plain = plainly(requests)
    launched = launch_async(options.topology, f"model.ballast={options.ballast}")
    schedule = {name: getattr(options, name) for name in ("kills", "stops", "garbage", "seed")}
    try:
        healthy, _ = attack(launched, plain, requests, **dict.fromkeys(schedule, 0))
        log.info("left alone: %s", healthy)
        under_attack, damage = attack(launched, plain, requests, **schedule)
    finally:
        end(launched)
    report = {
        "topology": options.topology,
        "healthy": asdict(healthy),
        "under_attack": asdict(under_attack),
        "damage": damage.report(),
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    bad = any(each.num_failed or each.num_wrong for each in (healthy, under_attack))
    left = damage.num_never_back or damage.num_unnoticed
    return int(bool(bad or left or not damage.is_complete(**schedule)))


if __name__ == "__main__":
    sys.exit(main())
