"""`specserve info`: of what a launch would serve, and of a running service."""

import json

import pytest

from specserve import __version__


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
