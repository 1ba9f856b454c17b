"""Services of parts that one GPU measured: tables of steps, what is predicted, what is refused."""

import msgspec
import numpy as np
import pytest

from bench.gpu.records import Draft, Fact, Results, Step, Task
from bench.machine import describe_machine
from bench.simulate import __main__ as command
from bench.simulate import parts
from bench.simulate.step_models import H100, QWEN_06B, QWEN_32B

KEY_S, TOKEN_S, FIXED_S = 2e-9, 10e-6, 6e-3
REDUCED_S = 2 * H100.reduce_s * QWEN_32B.num_layers


def step(model: str, devices: int, rows: int, tokens: int, context: int) -> Step:
    own_s = FIXED_S if devices > 1 else FIXED_S / 6
    seconds = own_s + rows * tokens * TOKEN_S + rows * context * KEY_S
    return Step(
        model=model, devices=devices, num_layers=QWEN_32B.num_layers, rows=rows, tokens=tokens,
        context=context, seconds=seconds, host_s=1e-4, floor_s=own_s / 2,
    )  # fmt: skip


STEPS = [
    *(step(QWEN_32B.name, 4, n, t, c) for n in (1, 16) for t in (1, 4, 8) for c in (512, 2048)),
    *(step(QWEN_06B.name, 1, n, 1, 512) for n in (1, 16, 128)),
]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    drafts = [
        Draft(drafter="dspark", target=QWEN_32B.name, gamma=7, blocks=n, seconds=1e-3)
        for n in (1, 32)
    ]
    fact = Fact(what="a copy reads and writes", value=4000, unit="GB/s")
    results = Results(
        tasks=[
            Task(name="steps", limit_s=1, ended="done", found=[fact, *STEPS]),
            Task(name="drafts", limit_s=1, ended="done", found=list(drafts)),
        ],
        is_dry=False, driver="580", libraries={}, machine=describe_machine(), command="",
        limit_s=9,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("parts") / "results.json"
    path.write_bytes(msgspec.json.encode(results))
    return path


def test_steps_are_those_of_a_share_and_what_ranks_exchange():
    steps = parts.steps_of(QWEN_32B.name, 4, STEPS)
    assert steps.slopes.key_s == pytest.approx(KEY_S)
    for rows, tokens in ((1, 1), (1, 8), (16, 8)):
        found = steps.at(rows, rows * 1000).seconds(np.array([rows * tokens]))[0]
        expected = FIXED_S + rows * tokens * TOKEN_S + rows * 1000 * KEY_S + REDUCED_S
        assert found == pytest.approx(expected)
    assert parts.steps_of(QWEN_32B.name, 2, STEPS) is None


@pytest.mark.slow
def test_services_are_predicted_with_every_drafter_that_was_measured(file):
    found = parts.predict(file, (1,), 60, "python -m bench.simulate")
    label = f"{QWEN_32B.name} / {QWEN_06B.name}, 4+1"
    assert list(found.plain) == [label, f"{QWEN_32B.name} / DSpark of 7, 4+1"]
    by_arm = {each.arm: each for each in found.loads if each.system == label}
    assert list(by_arm) == ["off, 4+0", "sync, 4+0", "async, 4+1", "auto, 4+1"]
    expected = 1 / (FIXED_S + TOKEN_S + REDUCED_S + 512 * KEY_S)
    assert by_arm["off, 4+0"].tokens_per_s == pytest.approx(expected, rel=0.01)
    assert by_arm["async, 4+1"].over_off > by_arm["sync, 4+0"].over_off > 1
    assert found.plain[label][0] == 88.8
    assert len(parts.tables(found)) == 2


def test_a_page_is_renewed_at_the_mark_of_parts_alone(file, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "SIZES", (1,))
    monkeypatch.setattr(command, "QUICK", command.QUICK._replace(tokens=1))
    found = msgspec.json.decode(file.read_bytes(), type=Results)
    path = tmp_path / "results.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(found, tasks=found.tasks[:1])))
    page = tmp_path / "page.md"
    others = "<!-- simulated: verdict -->\nas it was\n<!-- end -->\n"
    page.write_text(f"{others}<!-- simulated: parts -->\nnone\n<!-- end -->\n")
    words = ["--quick", "--out", str(tmp_path / "out"), "--page", str(page), "--parts", str(path)]
    assert command.main(words) == 0
    text = page.read_text()
    assert text.startswith(others)
    assert "predicted from measured parts" in text
    assert (tmp_path / "out/report.md").read_text().startswith("# Services from measured parts")


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "cannot be read"), ("{}", "is no results.json of python -m bench.gpu")],
)
def test_a_file_without_parts_is_refused(content, told, tmp_path, capsys):
    path = tmp_path / "results.json"
    if content is not None:
        path.write_text(content)
    assert command.main(["--out", str(tmp_path / "out"), "--parts", str(path)]) == 1
    told_all = " ".join(capsys.readouterr().err.split())
    assert "--parts" in told_all
    assert told in told_all


def test_parts_of_no_system_are_refused_by_what_they_are(file, tmp_path, capsys):
    found = msgspec.json.decode(file.read_bytes(), type=Results)
    found.tasks[0].found = [step("Qwen3-8B", 1, 1, 1, 512)]
    path = tmp_path / "results.json"
    path.write_bytes(msgspec.json.encode(found))
    assert command.main(["--out", str(tmp_path / "out"), "--parts", str(path)]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "has steps of Qwen3-8B on 1, and none of Qwen3-32B on 4" in told
