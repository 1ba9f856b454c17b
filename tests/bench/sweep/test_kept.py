"""What is kept of a sweep, and who may go on with it."""

import msgspec
import pytest

from bench.machine import describe_machine
from bench.sweep.kept import KEPT_FILE, Kept, Measured
from bench.sweep.plan import QUICK
from specserve.errors import InvalidField
from tests.bench.sweep.made_up import cell

MEASURED = Measured(
    plan=QUICK, target="tiny", ballast="30M", drafter="lm", device="cpu", flags="",
    prompts="standard, 26, 0123", is_pinned=True,
)  # fmt: skip


def test_what_was_kept_is_there_for_the_next_run(tmp_path):
    first = Kept(tmp_path, MEASURED)
    assert (first.cells, first.sessions, first.elapsed_s) == ([], [], 0.0)
    first.begin(describe_machine())
    for repeat in range(2):
        first.keep(cell("off", repeat=repeat))
    second = Kept(tmp_path, MEASURED)
    assert second.cells == first.cells == [cell("off"), cell("off", repeat=1)]
    assert second.sessions == first.sessions
    assert second.elapsed_s == 20.0
    second.keep(cell("sync"))
    assert len(Kept(tmp_path, MEASURED).cells) == 3


def test_a_line_that_a_killed_run_left_unfinished_is_dropped(tmp_path):
    kept = Kept(tmp_path, MEASURED)
    kept.keep(cell("off"))
    path = tmp_path / KEPT_FILE
    whole = path.read_bytes()
    for cut in (1, 30, len(whole.splitlines()[-1])):
        path.write_bytes(whole + whole.splitlines()[-1][:-cut])
        again = Kept(tmp_path, MEASURED)
        assert again.cells == [cell("off")]
        again.keep(cell("sync"))
        assert [each.arm for each in Kept(tmp_path, MEASURED).cells] == ["off", "sync"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"plan": msgspec.structs.replace(QUICK, max_tokens=64)},
            "--max-tokens 128 there, 64 here",
        ),
        (
            {"plan": msgspec.structs.replace(QUICK, batch_sizes=(1, 2))},
            "--batch-sizes 1,4,16 there, 1,2 here",
        ),
        ({"target": "other", "ballast": "1B"}, "--target tiny there, other here; --ballast 30M"),
        ({"prompts": "gsm8k, 26, 4567"}, "--prompts standard, 26, 0123 there, gsm8k"),
    ],
)
def test_other_flags_are_refused_by_name_and_leave_everything_as_it_is(tmp_path, changes, told):
    Kept(tmp_path, MEASURED).keep(cell("off"))
    before = (tmp_path / KEPT_FILE).read_bytes()
    with pytest.raises(InvalidField) as error:
        Kept(tmp_path, msgspec.structs.replace(MEASURED, **changes))
    assert str(error.value).startswith("--out: ")
    assert told in str(error.value)
    assert "give another --out" in str(error.value)
    assert (tmp_path / KEPT_FILE).read_bytes() == before


def test_flags_may_change_as_long_as_nothing_was_measured(tmp_path):
    Kept(tmp_path, MEASURED).begin(describe_machine())
    changed = msgspec.structs.replace(MEASURED, ballast="1B")
    assert Kept(tmp_path, changed).cells == []
    Kept(tmp_path, changed).keep(cell("off"))
    with pytest.raises(InvalidField, match="--ballast 1B there, 30M here"):
        Kept(tmp_path, MEASURED)


@pytest.mark.parametrize("content", [b"hello\n", b'{"type":"sweep"}\n', b"{}\nx\n"])
def test_a_file_that_is_none_of_a_sweep_is_refused(tmp_path, content):
    (tmp_path / KEPT_FILE).write_bytes(content)
    with pytest.raises(InvalidField, match="was not written by this version; give another --out"):
        Kept(tmp_path, MEASURED)
    assert (tmp_path / KEPT_FILE).read_bytes() == content


def test_a_line_that_nobody_wrote_is_refused_where_others_follow(tmp_path):
    kept = Kept(tmp_path, MEASURED)
    kept.keep(cell("off"))
    lines = (tmp_path / KEPT_FILE).read_bytes().splitlines()
    (tmp_path / KEPT_FILE).write_bytes(b"\n".join([lines[0], b"x", lines[1]]) + b"\n")
    with pytest.raises(InvalidField, match="give another --out"):
        Kept(tmp_path, MEASURED)
