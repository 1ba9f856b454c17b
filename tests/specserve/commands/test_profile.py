"""`specserve profile`: a table that a service makes once, keeps, and refreshes by its rounds."""

import json
import re

import pytest

from specserve.client import Client

FLAGS = ("--target", "tiny", "--drafter", "ngram", "--speculation", "sync")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECSERVE_CACHE", str(tmp_path / "cache"))


@pytest.mark.slow
def test_a_table_is_made_once_and_refreshed_by_rounds(specserve, start_service, tmp_path):
    png = tmp_path / "plots" / "steps.png"
    text = specserve("profile", *FLAGS, "--png", str(png)).stdout
    assert re.search(r"^ +1 +1 +[\d.]+ ", text, re.MULTILINE)
    assert "--again measures anew" in text
    assert png.read_bytes().startswith(b"\x89PNG")
    first = json.loads(specserve("profile", *FLAGS, "--json").stdout)
    assert json.loads(specserve("profile", *FLAGS, "--json").stdout) == first  # nothing ran
    assert first["num_rounds"] == 0
    assert [cell["num_tokens"] for cell in first["cells"]][:4] == [1, 2, 3, 4]
    assert all(cell["seconds"] > 0 for cell in first["cells"])
    again = json.loads(specserve("profile", *FLAGS, "--json", "--again").stdout)
    assert again["cells"] != first["cells"]
    assert again["made_for"] == first["made_for"]


@pytest.mark.slow
def test_what_rounds_took_is_there_after_the_service(specserve):
    from specserve.processes.local_service import local_service

    with local_service(FLAGS) as address, Client(address) as client:
        client.generate("def f(x):", max_tokens=24, temperature=0)
    record = json.loads(specserve("profile", *FLAGS, "--json").stdout)
    assert record["num_rounds"] >= 5
    assert 0 <= record["median_error"] < 5
    text = specserve("profile", *FLAGS).stdout
    assert f"{record['num_rounds']} rounds refreshed it" in text


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--png", "steps.jpg"), "--png: steps.jpg does not end in .png"),
        (("--speculation", "off"), "speculation: this service plans nothing by what forwards"),
        (("--verify-policy", "fixed"), "speculation: this service plans nothing by what forwards"),
        (("--topology", "0+1"), "topology.topology"),
    ],
)
def test_what_cannot_be_profiled_is_said_at_once(words, problem, refused):
    assert refused("profile", *FLAGS[:4], *words).startswith(problem)
