"""What the command line asks for, and what is refused."""

import pytest

from bench.sweep import __main__ as command
from bench.sweep.__main__ import build_parser, main, read_plan, read_targets
from bench.sweep.plan import Load
from specserve.errors import InvalidField


def plan(*words: str):
    return read_plan(build_parser().parse_args(words))


def test_lists_take_commas_and_spaces_alike():
    found = plan("--batch-sizes", "4,1", "16", "--modes", "off,sync", "--topologies", "1+1,", "2+0")
    assert found.batch_sizes == (1, 4, 16)
    assert found.modes == ("off", "sync")
    assert found.topologies == ("1+1", "2+0")
    assert plan("--temperature", "1", "0").temperatures == (0.0, 1.0)
    assert plan("--policies", "fixed,threshold:0.3").policies == ("fixed", "threshold:0.3")


def test_quick_is_three_loads_at_temperature_1_with_three_repeats_and_a_budget_of_time():
    found = plan("--quick")
    assert found.batch_sizes == (1, 4, 16)
    assert found.temperatures == (1.0,)
    assert found.repeats == 3
    assert found.modes == ("off", "sync", "async", "auto")
    assert found.max_tokens == 128
    assert found.budget_s is not None
    assert found.budget_s < 15 * 60


def test_everything_is_1_to_64_requests_at_both_temperatures():
    found = plan()
    assert found.batch_sizes == (1, 2, 4, 8, 16, 32, 64)
    assert found.temperatures == (0.0, 1.0)
    assert found.max_tokens == 128
    assert found.budget_s is None
    assert plan("--budget", "60").budget_s == 60
    with pytest.raises(InvalidField, match=r"--budget: 0 is not from 1"):
        plan("--budget", "0")


@pytest.mark.parametrize(("words", "is_fixed"), [((), True), (("--texts-may-differ",), False)])
def test_services_of_a_gpu_are_deterministic_unless_texts_may_differ(words, is_fixed, monkeypatch):
    monkeypatch.setattr(command, "check_service", lambda *_: None)  # which asks for the GPU
    given = build_parser().parse_args(["--target", "tiny", "--device", "cuda", *words])
    assert ("--deterministic" in command.Wanted(given).flags) == is_fixed


def test_rates_stand_alone_unless_batch_sizes_are_named():
    opened = plan("--rates", "0.5,2", "--arrivals", "poisson,bursty").loads
    assert opened == [
        Load(rate=rate, arrivals=kind) for kind in ("poisson", "bursty") for rate in (0.5, 2.0)
    ]
    both = plan("--rates", "2", "--batch-sizes", "3").loads
    assert both == [Load(in_flight=3), Load(rate=2.0, arrivals="poisson")]
    assert [str(load) for load in both] == ["3 in flight", "2 a second, poisson"]


def test_the_largest_load_is_that_of_its_kind():
    found = plan("--rates", "1,2", "--arrivals", "poisson,bursty", "--batch-sizes", "1,4")
    largest = [load for load in found.loads if found.is_largest(load)]
    assert [str(load) for load in largest] == [
        "4 in flight", "2 a second, poisson", "2 a second, bursty",
    ]  # fmt: skip


def test_a_turn_has_twice_as_many_requests_as_are_in_flight_or_more():
    found = plan("--requests", "10")
    assert found.requests_of(Load(in_flight=2)) == 10
    assert found.requests_of(Load(in_flight=64)) == 128
    assert found.requests_of(Load(rate=1.0, arrivals="bursty")) == 10


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--batch-sizes", "0"], "--batch-sizes: 0 is not from 1 to 4096"),
        (["--batch-sizes", "5000"], "--batch-sizes: 5000 is not from 1 to 4096"),
        (["--batch-sizes", "few"], "'few' is no number of this kind; type --batch-sizes 1,4,16"),
        (["--batch-sizes", "1.5"], "type --batch-sizes 1,4,16"),
        (["--batch-sizes", ","], "--batch-sizes: is empty; type --batch-sizes 1,4,16"),
        (["--modes", "fast"], "'fast' is none of off, sync, async, auto"),
        (["--modes", ","], "type some of off,sync,async,auto"),
        (["--policies", "best"], "'best' is none of fixed, price, causal, barrier, global"),
        (["--policies", "threshold"], "type threshold:0.3"),
        (["--policies", "threshold:2"], "type threshold:0.3"),
        (["--policies", "price:0.3"], "price takes no number; type price"),
        (["--topologies", "1"], "type 1+0,1+1"),
        (["--topologies", "1+0"], "add 1+1, or leave async out of --modes"),
        (["--threads", "0"], "--threads: 0 is not from 1 to"),
        (["--temperature", "-1"], "--temperature: -1 is not from 0 to"),
        (["--temperature", "nan"], "type --temperature 0 1"),
        (["--rates", "0"], "--rates: is in requests a second"),
        (["--rates", "inf"], "type --rates 0.5,1"),
        (["--arrivals", "often"], "'often' is none of poisson, bursty"),
        (["--max-tokens", "8"], "--max-tokens: 8 is not from 10 to"),
        (["--requests", "0"], "--requests: 0 is not from 1 to"),
        (["--repeats", "0"], "--repeats: 0 is not from 1 to"),
        (["--warm-up", "-1"], "--warm-up: -1 is not from 0 to"),
        (["--sampling", "top_p=much"], "--sampling"),
    ],
)
def test_a_senseless_flag_is_named_with_its_limit_and_what_to_type(words, told):
    with pytest.raises(InvalidField) as error:
        plan(*words)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--latency-target-ms", "0", "100"], "type --latency-target-ms 2000 100"),
        (["--latency-target-ms", "nan", "100"], "type --latency-target-ms 2000 100"),
        (["--interactivity", "0"], "type --interactivity 10"),
    ],
)
def test_targets_that_nobody_could_miss_or_reach_are_refused(words, told):
    with pytest.raises(InvalidField, match=told):
        read_targets(build_parser().parse_args(words))


def test_targets_are_as_said():
    words = ["--latency-target-ms", "500", "40", "--interactivity", "25"]
    found = read_targets(build_parser().parse_args(words))
    assert (found.ttft_ms, found.tpot_ms, found.interactivity) == (500, 40, 25)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--topologies", "64+64"], "--topologies: 64+0 needs 64 cores"),
        (["--drafter", "/nonexistent/folder"], "speculation.drafter"),
        (["--flags=--no-such-flag"], "--flags: unrecognized arguments: --no-such-flag"),
        (["--flags", "'"], '--flags: "\'": No closing quotation'),
        (["--ballast", "many"], "--ballast"),
        (["--prompts", "8"], "--num-prompts 8"),
        (["--target", "/nonexistent"], "model.target"),
    ],
)
def test_what_cannot_be_measured_fails_with_one_line_before_anything_is_written(
    words, told, tmp_path, capfd
):
    out = tmp_path / "out"
    assert main(["--target", "tiny", "--out", str(out), *words]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert told in line
    assert not out.exists()


def test_the_help_has_examples():
    told = build_parser().format_help()
    assert "python -m bench.sweep --quick --out DIR" in told
    assert "--arrivals poisson,bursty" in told
