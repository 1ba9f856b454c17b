"""The campaign by hand: see the package."""

import argparse
import json
import logging
import sys

from tests.reliability.fuzz.campaign import Attacked, Verdict, attack, attacked_service


def harm(attacked: Attacked, verdict: Verdict) -> list[str]:
    """Everything that should not have happened, in words."""
    assert verdict.last
    found: list[str] = []
    if verdict.last.names != attacked.at_start.names:
        found.append(f"processes {attacked.at_start.names} have become {verdict.last.names}")
    if verdict.answers.num_failed or verdict.answers.num_wrong:
        found.append(f"requests: {verdict.answers}")
    found += [
        f"{name} answered {status} {count} times"
        for name, sent in verdict.sent.items()
        for status, count in sent.num_answers.items()
        if status in ("500", "INTERNAL", "UNKNOWN")
    ]
    for pid, name in attacked.at_start.names.items():
        before, after = attacked.at_start.num_files[pid], verdict.last.num_files.get(pid, 0)
        if after > before:
            found.append(f"{name} has {after} files open, {before} before")
    found += traceback_in(attacked.launched.output)
    return found


def traceback_in(output: str) -> list[str]:
    """The first one, and the line before it."""
    before, mark, after = output.partition("Traceback (most")
    return [before.splitlines()[-1] + "\n" + mark + after[:3000]] if mark else []


def report(attacked: Attacked, verdict: Verdict) -> dict[str, object]:
    assert verdict.last
    moments = [*verdict.slices, verdict.last]
    return {
        "seconds": round(verdict.seconds, 1),
        "frames": {name: sent.num_frames for name, sent in verdict.sent.items()},
        "answers": {name: sent.num_answers for name, sent in verdict.sent.items()},
        "requests": vars(verdict.answers),
        "memory_kb": {
            name: [moment.rss_kb.get(pid, 0) for moment in moments]
            for pid, name in attacked.at_start.names.items()
        },
        "growth": {name: round(value, 4) for name, value in verdict.growth.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000, help="to each port")
    parser.add_argument("--requests", type=int, default=60, help="of a pass of the bystander's")
    parser.add_argument("--before", type=int, default=2000, help="requests to warm up with")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.basicConfig(level="INFO", stream=sys.stderr)
    with attacked_service() as attacked:
        verdict = attack(
            attacked,
            options.frames,
            num_requests=options.requests,
            num_before=options.before,
            seed=options.seed,
        )
        found = harm(attacked, verdict)
    sys.stdout.write(json.dumps({"harm": found, **report(attacked, verdict)}, indent=1) + "\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
