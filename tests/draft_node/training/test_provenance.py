"""What cards say of weights: whose they were, what they learned, under which licences."""

import argparse
import json
from pathlib import Path

import pytest

from draft_node.training.checkpoint import Progress
from draft_node.training.provenance import RunRecord, commands_with, licence_of, origin, provenance
from specserve.settings.target_source import EMBEDDED_TARGET, find_smollm2


def flags(target: Path, **others: object) -> argparse.Namespace:
    plain = {"kind": "lm", "out": Path("out"), "data": None, "text": None, "init": None}
    plain |= {"self_text": 0.5, "fuse_with": None}
    return argparse.Namespace(target=target, **(plain | others))


def test_a_gguf_file_says_its_licence():
    smollm2 = find_smollm2()
    if smollm2 is None:
        pytest.skip("SmolLM2 is not installed")
    assert licence_of(smollm2) == "apache-2.0"


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlanguage: en\nlicense: mit\n---\n# A model\n", "mit"),
        ("---\nlicense: mit\n", None),
        ("# A model\nlicense: mit\n", None),
        (None, None),
    ],
)
def test_a_folder_says_it_in_the_head_of_its_card(tmp_path, card, licence):
    if card is not None:
        (tmp_path / "README.md").write_text(card)
    assert licence_of(tmp_path) == licence


def test_cut_weights_name_layers_and_what_chats_were_about(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    data = tmp_path / "chats"
    data.mkdir()
    (data / "data.json").write_text(json.dumps({"licences_of_sources": {"a book": "PSF-2.0"}}))
    said = origin(flags(tmp_path, data=data), (0, 7))
    assert f"derived from `{tmp_path.name}` (licence mit, which goes along" in said
    assert "Their layers began as its layers 0, 7," in said
    chats = f"the chats in `{data}`, which the target wrote itself, on questions of its own"
    assert said.endswith(f"{chats} and about sources (a book: PSF-2.0).")


def test_text_and_what_one_goes_on_from_are_named(tmp_path):
    said = origin(flags(tmp_path, text=Path("/books"), init=Path("/drafters/first")))
    assert "They go on from `first`." in said
    assert said.endswith("the text in `/books`, and what the target wrote behind it.")
    alone = origin(flags(tmp_path, self_text=0.0))
    assert alone.endswith("each part under the licence of its package.")


def test_a_card_ends_with_the_command():
    record = RunRecord(
        "specserve train lm", EMBEDDED_TARGET.name, 3, 4_000_000, 0.5, "From there.",
        epochs={"chat": 2.5},
    )  # fmt: skip
    text = provenance(record)
    assert "From there." in text
    assert "3 steps, 4,000,000 tokens (chat 2.5 times), 0.5 active minutes" in text
    assert text.endswith("\n    specserve train lm\n")


def test_what_a_run_went_on_from_is_told_command_by_command(tmp_path):
    first = RunRecord(
        "specserve train dspark --out first", "target", 1, 2, 0.5,
        earlier=("zeroth",), copied=(0, 29),
    )  # fmt: skip
    (tmp_path / "held_out.json").write_text(json.dumps(first.beside({"held_out": {}})))
    given = flags(EMBEDDED_TARGET, init=tmp_path)
    record = RunRecord.of(given, Progress(step=3, tokens=4), "specserve train dspark --out last")
    assert record.earlier == ("zeroth", "specserve train dspark --out first")
    assert record.copied == (0, 29)
    begun = "Their layers began as its layers 0, 29, of which nothing was frozen. They go on from"
    assert f"{begun} `{tmp_path.name}`." in record.origin
    text = provenance(record)
    assert "is what the commands above the last one made" in text
    assert text.endswith("\n    zeroth\n    specserve train dspark --out first\n"
                         "    specserve train dspark --out last\n")  # fmt: skip


def test_a_start_that_says_nothing_is_no_error(tmp_path):
    record = RunRecord.of(flags(EMBEDDED_TARGET, init=tmp_path), Progress(), "a command")
    assert record.earlier == ()


def test_a_card_says_what_to_type_with_a_head_beside_whatever_it_was_fused_with(tmp_path):
    given = flags(EMBEDDED_TARGET, kind="local-head", data=Path("chats"), fuse_with=Path("flash"))
    text = provenance(RunRecord.of(given, Progress(), "a command"))
    assert "    specserve calibrate --target tiny --drafter flash --local-head out --data" in text
    assert "    specserve launch --target tiny --drafter flash --local-head out\n" in text
    given = flags(tmp_path)
    assert commands_with(given, "mine")[1] == f"specserve launch --target {tmp_path} --drafter mine"
