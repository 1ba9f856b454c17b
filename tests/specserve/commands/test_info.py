"""`specserve info`: of what a launch would serve, and of a running service."""

import json

import pytest

from specserve import __version__
from specserve.api.figure_names import FIGURES
from specserve.api.info import ServerInfo, ServerLoad, SpecConfig, SpecStats
from specserve.commands.info import layout


def test_info_shows_versions_machine_and_the_embedded_model(specserve):
    result = specserve("info", "--json", "--target", "tiny", "--ballast", "60M")
    document = json.loads(result.stdout)
    assert document["versions"]["specserve"] == __version__
    assert document["machine"]["cores"] >= 1
    assert document["model"]["name"] == "specserve-embedded"
    assert "leaves the distribution as it is" in document["model"]["ballast"]
    assert document["model"]["stored_in"] == "bfloat16"
    assert "dtype" not in document["model"]  # which a launch decides: what is computed in
    assert "ballast" in specserve("info").stdout


def test_info_shows_what_a_file_would_serve(specserve, refused, tmp_path):
    path = tmp_path / "serve.toml"
    path.write_text(
        '[model]\ntarget = "tiny"\nname = "mine"\nballast = "60M"\n[engine]\nkv_memory = "300KiB"\n'
    )
    words = ("info", "--config", str(path))
    document = json.loads(specserve(*words, "--json", "--ballast", "12M").stdout)
    assert (document["model"]["name"], document["model"]["max_model_len"]) == ("mine", 32)
    assert document["model"]["ballast"].startswith("7.0M")  # a flag overrides the file
    settings = document["settings"]
    assert settings["model.ballast"] == "12M"
    assert (settings["engine.kv_memory"], settings["model.max_model_len"]) == ("300KiB", "32")
    assert settings["model.dtype"] == "float32"
    assert "place.target.0" in specserve(*words).stdout
    path.write_text("[topology]\nthreads = 1000\n")
    assert refused(*words).startswith("topology.topology: 1+0 with 1000 thread(s)")


@pytest.mark.slow
def test_info_shows_a_running_service(service, specserve):
    document = json.loads(specserve("info", "--json", "--connect", service).stdout)
    assert document["service"]["topology"] == "1+0"
    assert document["model"]["model"] == "specserve-embedded"
    assert document["load"]["draining"] is False
    assert document["speculation"]["mode"] in ("auto", "sync")
    assert "acceptance_rate" in document["speculation"]


@pytest.mark.slow
def test_ballast_counts_apart_from_the_parameters_of_the_distribution(
    service, start_service, specserve
):
    padded = start_service("--ballast", "12M", "--speculation", "off")
    models = [
        json.loads(specserve("info", "--json", "--connect", address).stdout)["model"]
        for address in (service, padded)
    ]
    assert models[1]["num_params"] == models[0]["num_params"]
    assert models[0]["ballast_params"] == 0
    assert models[1]["ballast_params"] > 6_000_000


def test_names_of_the_wire_that_say_nothing_are_words_in_the_text():
    sections: dict = {
        "service": {"state": "ready", "uptime_s": 5.0},
        "load": {"speculation_regime": "off", "uptime_s": 1.5, "num_rounds": 3},
        "speculation": {"wave": 16, "num_broken_laws": 0, "drafts": [{"state": "attached"}]},
        "machine": {"uptime_s": 3},
    }
    lines = [line.rstrip() for line in layout(sections).splitlines()]
    assert "  api_uptime_s  5.0  seconds since the API process has started" in lines
    assert "  target_uptime_s  1.5  seconds since the target has started, as it told" in lines
    assert "  mode_now         off  what the last round ran: off, sync or async" in lines
    assert "  num_rounds       3" in lines
    (broken,) = (line for line in lines if "broken" in line)
    assert broken.startswith("  num_broken_draft_probs  0 ")
    assert "a draft process is broken" in broken
    assert "  uptime_s  3" in lines  # of a section without such names
    assert not {"regime", "wave", "laws"} & set("\n".join(lines).replace("_", " ").split())


def test_every_name_that_is_replaced_is_one_of_the_api():
    """A renamed field would be shown as before, and nobody would notice."""
    known = {
        "service": ServerInfo.__struct_fields__,
        "load": ServerLoad.__struct_fields__,
        "speculation": (
            *SpecConfig.__struct_fields__,
            *SpecStats.__struct_fields__,
            "acceptance_rate",
            "hit_rate",
        ),
    }
    for section, figures in FIGURES.items():
        assert figures.keys() <= set(known[section])
        names = [figures[key].name if key in figures else key for key in known[section]]
        assert len(set(names)) == len(set(known[section]))  # no two have one name
