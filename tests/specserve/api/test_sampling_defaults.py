"""What requests leave unset is as the model's publisher wishes, unless nobody wants that."""

import json

import pytest

from specserve.api.sampling_defaults import sampling_defaults
from specserve.client import Client
from specserve.errors import Unsupported
from specserve.types import SamplingParams, Submit
from tests.specserve.models.checkpoints import QWEN3, write_checkpoint
from tests.specserve.models.gguf.files import write_gguf

PUBLISHED = {
    "do_sample": True,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "min_p": None,
    "eos_token_id": [1, 2],
    "transformers_version": "5.0",
}


def write(folder, content):
    (folder / "generation_config.json").write_text(json.dumps(content))
    return folder


def test_the_file_says_what_is_unset(tmp_path):
    found = sampling_defaults(write(tmp_path, PUBLISHED), "auto")
    assert found == SamplingParams(temperature=0.6, top_k=20, top_p=0.95)
    assert sampling_defaults(tmp_path, "none") == SamplingParams()
    write(tmp_path, {"repetition_penalty": 1.1, "min_p": 0.1, "temperature": None})
    found = sampling_defaults(tmp_path, "auto")
    assert found == SamplingParams(repetition_penalty=1.1, min_p=0.1)
    for top_k, expected in ((50.0, 50), (-1, 0), (0, 0)):
        write(tmp_path, {"top_k": top_k})
        assert sampling_defaults(tmp_path, "auto") == SamplingParams(top_k=expected)


def test_a_model_without_the_file_changes_no_distribution(tmp_path):
    assert sampling_defaults(tmp_path, "auto") == SamplingParams()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"top_k": 2.5}, r"top_k: 2\.5 is no whole number.*--generation-config none"),
        ({"top_k": float("inf")}, r"top_k: inf is no whole number.*--generation-config none"),
        ({"top_k": -2}, r"top_k: -2 is out of range.*--generation-config none"),
        ({"temperature": -1}, r"temperature: -1\.0 is out of range.*--generation-config none"),
        ({"top_k": "many"}, r"generation_config\.json: .*top_k.*--generation-config none"),
        ([], r"generation_config\.json: .*--generation-config none"),
    ],
)
def test_a_file_that_asks_for_what_no_request_may_is_one_clear_error(tmp_path, content, problem):
    with pytest.raises(Unsupported, match=problem):
        sampling_defaults(write(tmp_path, content), "auto")
    sampling_defaults(tmp_path, "none")


def test_a_gguf_file_says_it_in_its_metadata(tmp_path):
    folder = write_checkpoint(tmp_path / "folder", QWEN3)
    wishes = {"temp": 0.5, "top_p": 0.75, "top_k": 20, "min_p": 0.25, "penalty_repeat": 1.5}
    metadata = {f"general.sampling.{key}": value for key, value in wishes.items()}
    metadata["general.sampling.penalty_last_n"] = 64  # which is no field of ours
    file = write_gguf(tmp_path / "m.gguf", folder, metadata=metadata)
    expected = SamplingParams(
        temperature=0.5, top_p=0.75, top_k=20, min_p=0.25, repetition_penalty=1.5
    )
    assert sampling_defaults(file, "auto") == expected
    assert sampling_defaults(file, "none") == SamplingParams()
    file = write_gguf(tmp_path / "m.gguf", folder, metadata={"general.sampling.top_k": "many"})
    with pytest.raises(Unsupported, match=r"general\.sampling\.top_k: 'many' is no number"):
        sampling_defaults(file, "auto")


@pytest.mark.slow
def test_they_are_those_of_fields_that_a_request_leaves_unset(make_rig):
    rig = make_rig()
    rig.service.sampling_defaults = SamplingParams(temperature=0.6, top_k=20)
    with Client(rig.address) as client:
        assert client.model_info().default_sampling == {"temperature": 0.6, "top_k": 20}
        client.generate("fox")
        client.generate("fox", temperature=0, top_p=0.5)
        client.generate("fox", top_k=-1)
        plain = SamplingParams()  # whose values are sent all the same
        client.generate("fox", top_k=0, temperature=plain.temperature, top_p=plain.top_p)
    asked = [message.request.sampling for message in rig.target.received(Submit)]
    assert [(s.temperature, s.top_k, s.top_p) for s in asked] == [
        (0.6, 20, 1.0),
        (0.0, 20, 0.5),
        (0.6, 0, 1.0),
        (1.0, 0, 1.0),
    ]
