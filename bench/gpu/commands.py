"""The tasks that other commands do: tests, the real model's services, chats and training.

Each is given a little less than its task has, so that it can keep what it found and stop.
"""

import contextlib
import csv
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from bench.gpu import children
from bench.gpu.records import Fact, Left, Report
from bench.gpu.scale import Given
from bench.gpu.side_by_side import SERVICES
from bench.gpu.side_by_side import Found as Service
from bench.sweep.kept import KEPT_FILE
from bench.sweep.results import Results as SweepResults
from bench.writing import RESULTS_FILE
from specserve.settings.target_source import SMOLLM2, find_smollm2

_ROOT = Path(__file__).parents[2]
# What was changed last, and what all else rests on; the rest follows by name.
_TESTS_FIRST = ("test_cuda_flashinfer.py", "test_cuda_forward.py", "test_cuda_graphs.py",
                "test_cuda_drafters.py")  # fmt: skip
_OUTCOME = re.compile(r"^(tests/\S+?\.py)::(.*?) (PASSED|FAILED|ERROR|SKIPPED)\b")
_TO_STOP_S = 10.0  # of a task's time
_CHATS_SHARE = 0.4  # of the time for chats and training, that chats take
_TO_EXPORT_S = 20.0  # behind training
_CHATS_KEPT = _ROOT / "draft_node/training/chats/smollm2"  # that the real model wrote earlier
_CHATS, _DRAFTER = "chats", "dspark"  # folders in --out


def tests(given: Given, report: Report) -> None:
    """tests/gpu, which hold a device against the CPU; all are skipped where there is none."""
    files = sorted(path.name for path in (_ROOT / "tests/gpu").glob("test_*.py"))
    files.sort(key=lambda name: (*_TESTS_FIRST, name).index(name))
    counts: dict[str, Counter[str]] = {}

    def hear(line: str) -> None:
        found = _OUTCOME.match(line)
        if found is None:
            say(line)
            return
        path, name, outcome = found.groups()
        if path not in counts:
            say(f"{path} ...")
        counts.setdefault(path, Counter())[outcome] += 1
        if outcome in ("FAILED", "ERROR"):
            say(line)
            report(Left(what=f"{path}::{name}", why=outcome.lower()))

    words = ["-m", "pytest", "-v", "--no-header", "-p", "no:cacheprovider", "--tb=short"]
    words += [str(Path("tests/gpu") / name) for name in files]
    code = _run(words, hear, given.ends_s - _TO_STOP_S)
    for path, outcomes in counts.items():
        for outcome, count in outcomes.items():
            report(Fact(what=path, value=count, unit=outcome.lower()))
    if code is None:
        report(Left(what="the rest of tests/gpu", why="no time was left"))
    elif not counts:
        report(Left(what="tests/gpu", why=f"pytest ended with {code}; its words are above"))


def real(given: Given, report: Report) -> None:
    """`bench.sweep`: one service a mode, all alive on the device, asked in turn over gRPC."""
    scale, ends_s = given.scale, given.ends_s
    folder, left_s = given.out / "real", ends_s - time.monotonic() - _TO_STOP_S
    words = ["-m", "bench.sweep", "--out", str(folder), "--target", given.target]
    words += ["--device", scale.device]
    words += ["--modes", "off,sync,async,auto", "--policies", "price", "--topologies", "1+0,1+1"]
    words += ["--temperature", "0", "--texts-may-differ", "--budget", f"{max(1, 0.8 * left_s):.0f}"]
    (folder / KEPT_FILE).unlink(missing_ok=True)  # of an earlier run, which had other times
    code = _run([*words, *scale.sweep], say, ends_s - _TO_STOP_S)
    with contextlib.suppress(OSError):
        _report_sweep(folder, report)
    if code != 0:
        why = "stopped at its limit" if code is None else f"bench.sweep ended with {code}"
        report(Left(what="the rest of the real model's services", why=why))


def _report_sweep(folder: Path, report: Report) -> None:
    found = msgspec.json.decode((folder / RESULTS_FILE).read_bytes(), type=SweepResults)
    for row in found.rows:
        what = f"{found.measured.target}: {row.arm} on {row.topology}, {row.load}"
        if row.tokens_per_s is not None:
            report(Fact(what=what, value=row.tokens_per_s.value, unit="tok/s"))
        if row.over_off is not None:
            report(Fact(what=what, value=row.over_off.value, unit="times plain decoding"))
        if row.hit_rate is not None:
            report(Fact(what=what, value=row.hit_rate.value, unit="of look-ups hit"))


def side_by_side(given: Given, report: Report) -> None:
    """`bench.gpu.side_by_side`: whether a draft process on the target's device is in time there."""
    target = [] if given.scale.device == "cpu" else ["--target", given.target]  # dry has its own
    words = ["-m", "bench.gpu.side_by_side", *target, *given.scale.side_by_side]
    names: list[str] = []

    def hear(line: str) -> None:
        say(line)
        with contextlib.suppress(msgspec.DecodeError):  # other lines are of services
            found = msgspec.json.decode(line, type=Service)
            names.append(found.name)
            _report_service(found, report)

    code = _run(words, hear, given.ends_s - _TO_STOP_S)
    if code != 0 or len(names) < len(SERVICES):
        why = "stopped at its limit" if code is None else f"it ended with {code}"
        missing = ", ".join(name for name in SERVICES if name not in names) or "the end"
        report(Left(what=f"side by side: {missing}", why=why))


def _report_service(found: Service, report: Report) -> None:
    what = f"side by side: {found.name}"
    if found.why_not:
        report(Left(what=what, why=found.why_not))
        return
    report(Fact(what=what, value=found.tokens_per_s, unit="tok/s"))
    report(Fact(what=what, value=found.forward_ms, unit="ms a forward"))
    if found.num_lookups:
        hits = found.num_hits / found.num_lookups
        report(Fact(what=what, value=hits, unit="of look-ups hit"))
    if found.num_draft_batches:
        report(Fact(what=what, value=found.draft_batch_ms, unit="ms a draft batch"))


def drafters(given: Given, report: Report) -> None:
    """Chats that the target writes, and a DSpark trained for it, in all of the time there is."""
    _chats(given, report)
    _train(given, report)


def _chats(given: Given, report: Report) -> None:
    chats, began_s = given.out / _CHATS, time.monotonic()
    time_s = _CHATS_SHARE * max(0.0, given.ends_s - _TO_STOP_S - began_s)
    words = ["-m", "specserve", "train", "data", "--target", given.target, "--out", str(chats)]
    words += ["--device", given.scale.device, *given.scale.chat_flags]
    code = _run(words, say, began_s + time_s)
    written = _tokens_in(chats)
    report(Fact(what="chats written", value=written, unit="tokens"))
    report(Fact(what="chats written", value=written / (time.monotonic() - began_s), unit="tok/s"))
    if code not in (0, None):
        report(Left(what="chats", why=f"specserve train data ended with {code}"))


def _train(given: Given, report: Report) -> None:
    scale, out, target = given.scale, given.out, given.target
    is_smollm2 = target == SMOLLM2 or Path(target) == find_smollm2()
    data = _CHATS_KEPT if is_smollm2 else out / _CHATS  # minutes write too little to learn from
    left_s = given.ends_s - time.monotonic() - _TO_STOP_S - _TO_EXPORT_S
    how_long = ["--minutes", f"{max(0.1, left_s / 60):.2f}"]
    if scale.train_steps is not None:
        how_long = ["--steps", str(scale.train_steps)]
    words = ["-m", "specserve", "train", "dspark", "--target", target, "--restart"]
    words += ["--out", str(out / _DRAFTER), "--work", str(out / "work"), "--data", str(data)]
    words += ["--device", scale.device, *how_long, *scale.train_flags]
    code = _run(words, say, given.ends_s - _TO_STOP_S)
    shutil.rmtree(out / "work", ignore_errors=True)  # streams, as large as what they were made of
    if code != 0:
        why = "stopped at its limit" if code is None else f"specserve train ended with {code}"
        report(Left(what="a trained drafter", why=why))
        return
    curve = _curve(out / _DRAFTER)
    seconds, tokens = curve.pop("active_s"), curve.pop("tokens")
    report(Fact(what="dspark trained", value=tokens / seconds, unit="tok/s"))
    report(Fact(what="dspark trained", value=tokens, unit="tokens"))
    for domain, value in curve.items():
        report(Fact(what=f"held-out {domain}", value=value, unit="tokens a round"))


def _tokens_in(chats: Path) -> int:
    # Imported here: it is the draft node's, and brings half of it along.
    from draft_node.training.chats.store import ChatStore

    return sum(exchange.num_tokens for exchange in ChatStore(chats).exchanges())


def _curve(drafter: Path) -> dict[str, float]:
    """The last line of what its export says of the training, by column."""
    with (drafter / "curve.csv").open(encoding="utf-8") as file:
        *_, last = csv.DictReader(file)
    return {name: float(value) for name, value in last.items() if value}


def say(line: str) -> None:
    """Of a command; what is found goes to stdout."""
    sys.stderr.write(line + "\n")


def _run(words: Sequence[str], hear: Callable[[str], None], ends_s: float) -> int | None:
    say("$ python " + " ".join(words))
    return children.run([sys.executable, *words], hear, ends_s, merged=True)
