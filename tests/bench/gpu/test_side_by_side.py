"""What is compared on one GPU: each service can be launched there, and on a CPU for a try."""

import json

import msgspec
import pytest

from bench.gpu import side_by_side
from bench.gpu.side_by_side import SERVICES, main
from bench.services.launch_flags import read_flags
from specserve.errors import Unsupported
from specserve.settings.config import ResolvedConfig
from tests.specserve.settings.resolving import DEVICES, MACHINE, resolved

ONE_GPU = msgspec.structs.replace(MACHINE, cuda_devices=DEVICES[:1])


def launched(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[list[str]]:
    """The flags of all services that are started; none of them starts."""
    flags: list[list[str]] = []

    def refuse(own: list[str]) -> None:
        flags.append(own)
        raise Unsupported("topology.mps: there is no daemon (--no-mps)")

    monkeypatch.setattr(side_by_side, "local_service", refuse)
    assert main(words) == 0
    return flags


def test_services_differ_in_who_drafts_and_whether_they_take_turns(monkeypatch):
    def on_gpu(words: list[str]) -> ResolvedConfig:
        return resolved(read_flags("flags", words), ONE_GPU)

    found = [on_gpu(words) for words in launched(monkeypatch, "--ballast", "8B")]
    assert [config.speculation.mode for config in found] == ["off", "sync", "async", "async"]
    assert [config.topology.mps for config in found] == [False, False, False, True]
    assert {config.model.ballast for config in found} == {"8B"}
    assert [config.num_sharing("cuda:0") for config in found] == [1, 1, 2, 2]


def test_every_step_can_be_tried_on_a_cpu(monkeypatch):
    for words in launched(monkeypatch, "--dry"):
        config = resolved(read_flags("flags", words))
        assert config.topology.device == "cpu"


def test_a_service_that_does_not_start_leaves_the_reason(monkeypatch, capsys, tmp_path):
    launched(monkeypatch, "--out", str(tmp_path / "lines"))
    told = capsys.readouterr().out
    assert (tmp_path / "lines").read_text() == told
    lines = [json.loads(line) for line in told.splitlines()]
    assert [line["name"] for line in lines] == list(SERVICES)
    assert {line["why_not"] for line in lines} == {"topology.mps: there is no daemon (--no-mps)"}
