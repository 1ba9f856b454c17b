"""`GET /status`: state, figures of the latest seconds, and every process, in every state."""

import asyncio
import os

import msgspec
import pytest

from specserve.api.http.server import HttpServer
from specserve.api.service import Service
from specserve.api.tokenizer import TextTokenizer
from specserve.processes.roster import ChildState, Roster
from specserve.settings.config import ModelConfig, Placement, ResolvedConfig
from specserve.types import DraftReport, Load, PositionCalibration
from tests.specserve.api.http.conftest import Answer, opened, send

BUSY = Load(
    num_blocks=8,
    num_free_blocks=6,
    speculation_regime="async",
    num_draft_processes=1,
    num_drafts_attached=1,
    drafts=[DraftReport(is_attached=True, bytes_sent=10, bytes_received=20, state="attached")],
    calibration=[PositionCalibration(10, 6, 7.0, 0.1), PositionCalibration(0, 0, 0.0, 0.0)],
)


def grown(seconds: float) -> Load:
    """Of a target that makes 100 tokens a second with 20 drafted blocks of 5, of which 3 stand."""
    counts = {
        "uptime_s": 5 + seconds,
        "num_generated_tokens": int(100 * seconds),
        "num_drafts": int(20 * seconds),
        "num_drafted_tokens": int(100 * seconds),
        "num_accepted_tokens": int(60 * seconds),
        "num_accepted_per_position": [int(20 * seconds)] * 3,
        "num_lookups": int(20 * seconds),
        "num_hits": int(15 * seconds),
    }
    return msgspec.structs.replace(BUSY, **counts)


def status(rig) -> dict:
    answer = send(rig.url, "GET", "/status")
    assert answer.status == 200
    return answer.body


def child(role: str, name: str, **changes) -> ChildState:
    told = ChildState(role=role, rank=0, name=name, pid=4711, state="ready", detail="")
    return msgspec.structs.replace(told, **changes)


def draft(rig) -> dict:
    (found,) = (each for each in status(rig)["processes"] if each["role"] == "draft")
    return found


def report(rig, load: Load) -> None:
    """Let the target report it, and wait until it was heard."""
    rig.target.load = load
    rig.until(lambda: rig.service.hub.load.uptime_s == load.uptime_s)


def test_figures_are_of_the_latest_two_seconds(make_rig):
    rig = make_rig(num_drafts=1)
    report(rig, grown(0))
    for half in range(1, 7):
        report(rig, grown(half / 2))
    found = status(rig)
    figures = found["figures"]
    assert figures["generated_tokens_per_s"] == pytest.approx(100)
    assert figures["accept_len"] == pytest.approx(4)
    assert figures["verify_len"] == pytest.approx(5)
    assert figures["hit_rate"] == pytest.approx(0.75)
    assert figures["accept_rates"] == pytest.approx([1.0, 1.0, 1.0])
    assert found["kv_cache_usage"] == pytest.approx(0.25)
    assert found["mode"] == "async"


def test_what_happened_before_is_forgotten(make_rig):
    rig = make_rig()
    report(rig, grown(0))
    report(rig, grown(1))
    tokens = grown(1).num_generated_tokens
    for half in range(3, 8):  # nothing more is made
        report(rig, msgspec.structs.replace(grown(half / 2), num_generated_tokens=tokens))
    assert status(rig)["figures"]["generated_tokens_per_s"] == 0
    assert status(rig)["num_generated_tokens"] == tokens


def test_without_two_reports_there_are_no_figures(make_rig):
    found = status(make_rig())
    assert found["figures"] is None
    assert (found["state"], found["reason"], found["model"]) == ("ready", "", "scripted")


def test_calibration_is_told_by_position(make_rig):
    rig = make_rig(num_drafts=1)
    report(rig, grown(1))
    first, second = status(rig)["calibration"]
    assert first == {
        "num_judged": 10, "mean_confidence": 0.7, "mean_acceptance": 0.6, "error": 0.1
    }  # fmt: skip
    assert second["num_judged"] == 0


def test_a_draft_is_attached_or_away_and_the_supervisor_says_why(make_rig):
    rig = make_rig(num_drafts=1)
    report(rig, grown(1))
    assert draft(rig) == {
        "name": "draft process 0", "role": "draft", "pid": None, "state": "attached",
        "is_well": True, "detail": "",
    }  # fmt: skip
    assert (status(rig)["state"], status(rig)["reason"]) == ("ready", "")
    roster = Roster(rig.service.control_dir)
    roster.tell([child("draft", "draft process 0")])
    assert draft(rig)["pid"] == 4711
    away = {"num_drafts_attached": 0, "drafts": [DraftReport(is_attached=False)]}
    report(rig, msgspec.structs.replace(grown(2), **away))
    assert (draft(rig)["state"], draft(rig)["is_well"]) == ("away", False)
    assert status(rig)["state"] == "degraded"
    assert status(rig)["reason"] == "draft process 0 is away"
    told = "was killed by SIGKILL; starting it again in 0.25 s"
    roster.tell([child("draft", "draft process 0", state="ended", pid=0, detail=told)])
    assert (draft(rig)["state"], draft(rig)["pid"]) == ("ended", None)
    assert status(rig)["reason"] == f"draft process 0 {told}"


def test_targets_are_idle_or_busy_or_silent(make_rig):
    rig = make_rig()
    rig.service.config = msgspec.structs.replace(
        rig.service.config,
        placements=tuple(
            Placement(role=role, rank=rank, device="cpu")
            for role, rank in (("target", 0), ("target", 1), ("api", 0))
        ),
    )
    api, *targets = status(rig)["processes"]
    assert (api["name"], api["pid"], api["state"]) == ("API process", os.getpid(), "ready")
    assert [each["name"] for each in targets] == ["target rank 0", "target rank 1"]
    assert {each["state"] for each in targets} == {"idle"}
    rig.script("the lazy dog " * 40)
    with opened(rig, {"prompt": "fox", "max_tokens": 400, "stream": True}) as connection:
        connection.getresponse()
        rig.until(lambda: status(rig)["processes"][1]["state"] == "busy")
    rig.target.freeze()
    rig.service.hub.load_s -= 60  # as if nothing had come for so long
    rig.until(lambda: "silent" in status(rig)["processes"][1]["state"])
    assert not status(rig)["processes"][1]["is_well"]


@pytest.mark.parametrize("how", ["socket closed", "told"])
def test_it_answers_after_the_target_was_lost(make_rig, how):
    rig = make_rig()
    rig.lose_target(how)
    rig.until(lambda: rig.service.hub.lost.is_set())
    found = status(rig)
    assert found["state"] == "target lost"
    assert found["reason"].startswith("target lost: ")


def test_it_answers_while_the_service_drains(make_rig):
    rig = make_rig()
    rig.service.hub.begin_drain(30.0)
    found = status(rig)
    assert found["state"] == "draining"
    assert "new requests are refused" in found["reason"]


def test_it_answers_while_the_target_loads(model_folder, tmp_path):
    async def look() -> Answer:
        config = ResolvedConfig(model=ModelConfig(target=str(model_folder)))
        service = Service(config, tmp_path, TextTokenizer(model_folder))
        app = HttpServer(service, 0)
        await app.start()
        try:
            answer = await asyncio.to_thread(send, app.url, "GET", "/status")
        finally:
            await service.close()
            service.hub.shut_down()
            await app.stop()
        return answer

    answer = asyncio.run(look())
    assert answer.status == 200
    assert (answer.body["state"], answer.body["model"]) == ("loading", "")
    assert answer.body["reason"] == "the target is not ready yet"
