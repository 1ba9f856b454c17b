"""Where results cannot be written, a bench says so at once and on one line."""

import importlib

import pytest

BENCHES = (
    "bench.engine",
    "bench.outage",
    "bench.drafters.__main__",
    "bench.sweep.__main__",
    "bench.sync_speed.__main__",
)


@pytest.mark.parametrize("bench", BENCHES)
@pytest.mark.parametrize(
    ("out", "problem"),
    [
        ("/proc/nope", "cannot write to /proc/nope: No such file or directory"),
        ("/proc/self/status", "/proc/self/status is a file; results need a folder"),
        ("/proc/" + "long" * 50, "cannot write to"),
    ],
)
def test_results_that_could_not_be_written_are_refused_before_any_work(
    bench, out, problem, capsys, monkeypatch
):
    module = importlib.import_module(bench)
    monkeypatch.setattr(module, "describe_machine", None, raising=False)  # work begins with it
    assert module.main(["--quick", "--out", out]) == 1
    output, errors = capsys.readouterr()
    assert output == ""
    (line,) = errors.splitlines()
    assert line.startswith(f"{bench.removesuffix('.__main__')}: --out: {problem}")
