from pathlib import Path

import pytest

from specserve.errors import InvalidField
from specserve.settings import drafter_source
from specserve.settings.config import SpeculationConfig
from specserve.settings.drafter_source import locate_drafter
from specserve.settings.target_source import EMBEDDED_TARGET, locate_target

DRAFTERS = EMBEDDED_TARGET.parent / "drafters"


def locate(
    target=EMBEDDED_TARGET, mode="sync", drafts=0, device="cpu", **fields
) -> SpeculationConfig:
    return locate_drafter(SpeculationConfig(mode=mode, **fields), target, drafts, device=device)


def names(speculation: SpeculationConfig) -> tuple[str | None, str | None]:
    """Of what drafts in a draft process, and in the target's."""
    drafter, colocated = speculation.drafter, speculation.colocated_drafter
    return drafter and Path(drafter).name, colocated and Path(colocated).name


def test_nothing_is_looked_for_when_nobody_drafts(tmp_path):
    off = SpeculationConfig(mode="off", drafter="nowhere")
    assert locate_drafter(off, tmp_path) is off


def test_prompt_lookup_needs_no_files(tmp_path):
    assert locate(tmp_path, drafter="ngram").drafter == "ngram"


def test_a_folder_becomes_absolute(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert locate(drafter="mine").drafter == str(tmp_path / "mine")


def test_a_target_of_ones_own_needs_a_drafter_of_ones_own(tmp_path):
    for mode, drafts in (("sync", 0), ("async", 1), ("auto", 1)):
        with pytest.raises(InvalidField, match=r"speculation\.drafter: is needed .* ngram"):
            locate(tmp_path, mode, drafts)


def test_auto_without_any_drafter_is_off(tmp_path):
    assert locate(tmp_path, "auto").mode == "off"


def test_smollm2_is_looked_up_in_its_prompts_where_no_drafter_comes_along(monkeypatch, tmp_path):
    monkeypatch.setattr(drafter_source, "SMOLLM2_DRAFTERS", tmp_path / "none")
    for mode, drafts in (("sync", 0), ("async", 1), ("auto", 0), ("auto", 1)):
        assert locate(locate_target("smollm2"), mode, drafts).drafter == "ngram"
    own = locate(locate_target("smollm2"), drafter="smollm2")
    assert own.drafter == str(locate_target("smollm2"))


def write_folders(place: Path, *names: str) -> None:
    for name in names:
        (place / name).mkdir()
        (place / name / "config.json").write_text("{}")


def test_smollm2_has_the_drafters_that_come_along_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(drafter_source, "SMOLLM2_DRAFTERS", tmp_path)
    smollm2 = locate_target("smollm2")
    write_folders(tmp_path, "dspark", "lm")
    assert locate(smollm2).drafter == "ngram"
    assert names(locate(smollm2, "async", 1)) == ("lm", "ngram")
    assert names(locate(smollm2, "auto", 1)) == ("lm", "ngram")
    assert locate(smollm2, device="cuda").drafter == str(tmp_path / "dspark")
    assert names(locate(smollm2, "async", 1, device="cuda")) == ("dspark", "dspark")
    write_folders(tmp_path, "dspark-async")
    assert names(locate(smollm2, "auto", 1, device="cuda")) == ("dspark-async", "dspark")
    assert locate(smollm2, drafter="lm").drafter == str(tmp_path / "lm")
    assert locate(smollm2, drafter="ngram").drafter == "ngram"
    # The tiny target's have names too, and another vocabulary.
    with pytest.raises(InvalidField, match="'dflash' is no folder and none of dspark, dspark-asy"):
        locate(smollm2, drafter="dflash")
    assert locate(drafter="lm").drafter == str(DRAFTERS / "lm")


def test_names_of_drafters_are_those_of_the_target(tmp_path):
    with pytest.raises(InvalidField, match="'dspark' is no folder and none of smollm2, ngram"):
        locate(tmp_path, drafter="dspark")


def test_a_gguf_file_may_draft(tmp_path):
    (tmp_path / "draft.gguf").write_bytes(b"GGUF")
    assert locate(drafter=str(tmp_path / "draft.gguf")).drafter == str(tmp_path / "draft.gguf")


def test_where_one_place_drafts_either_name_is_its_drafters():
    for mode in ("sync", "auto"):
        for field in ("drafter", "colocated_drafter"):
            found = names(locate(mode=mode, **{field: "dspark"}))
            assert found == ("dspark", None if mode == "sync" else "dspark")


@pytest.mark.parametrize("field", ["drafter", "local_head"])
def test_what_is_no_folder_is_refused_by_the_name_of_its_field(field):
    fields = {"drafter": str(EMBEDDED_TARGET)} | {field: "nothere"}
    with pytest.raises(InvalidField, match=rf"speculation\.{field}: 'nothere' is no folder"):
        locate(**fields)


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(InvalidField, match=r"config\.json is missing"):
        locate(drafter=str(tmp_path))


def test_a_folder_of_pickles_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "local_head.pt").write_bytes(b"PK")
    with pytest.raises(InvalidField, match=r"\(local_head.pt\).* convert them to safetensors"):
        locate(drafter=str(EMBEDDED_TARGET), local_head=str(tmp_path))


def test_prompt_lookup_takes_no_local_head():
    with pytest.raises(InvalidField, match=r"speculation\.local_head: .* not to ngram"):
        locate(drafter="ngram", local_head=str(EMBEDDED_TARGET))


def test_the_embedded_target_has_a_drafter_by_default():
    assert locate().drafter == str(DRAFTERS / "lm")


def test_without_the_first_choice_the_second_drafts(tmp_path, monkeypatch):
    write_folders(tmp_path, "dspark", "lm")
    monkeypatch.setattr(drafter_source, "EMBEDDED_DRAFTERS", tmp_path)
    for best in ("lm", "dspark"):
        assert names(locate(mode="auto", drafts=0)) == (best, best)
        for mode in ("async", "auto"):
            assert names(locate(mode=mode, drafts=1)) == (best, best)
        (tmp_path / best / "config.json").unlink()
        (tmp_path / best).rmdir()


def test_what_the_user_names_drafts_where_it_was_meant_to():
    assert names(locate(mode="async", drafts=1, drafter="lm")) == ("lm", None)
    assert names(locate(mode="auto", drafts=1, drafter="dspark")) == ("dspark", "lm")
    assert names(locate(mode="auto", drafts=1, colocated_drafter="ngram"))[1] == "ngram"
    assert names(locate(mode="auto", drafter="lm")) == ("lm", "lm")


def test_a_target_of_ones_own_takes_one_drafter_for_both_places(tmp_path):
    for fields in ({"drafter": "ngram"}, {"colocated_drafter": "ngram"}):
        assert names(locate(tmp_path, "auto", 1, **fields)) == ("ngram", "ngram")


@pytest.mark.parametrize(("mode", "drafts"), [("auto", 1), ("auto", 0), ("async", 1), ("sync", 0)])
@pytest.mark.parametrize("field", ["drafter", "colocated_drafter"])
def test_a_wrong_drafter_is_refused_by_the_name_it_was_given(mode: str, drafts: int, field: str):
    with pytest.raises(InvalidField, match=rf"speculation\.{field}: 'no' is no folder"):
        locate(mode=mode, drafts=drafts, **{field: "no"})


def test_a_launch_that_drafts_nothing_asks_for_no_local_head(tmp_path):
    assert locate(tmp_path, "auto", local_head="no").mode == "off"


def test_a_local_head_is_a_folder():
    with pytest.raises(InvalidField, match=r"speculation\.local_head: 'ngram' is no folder"):
        locate(drafter=str(DRAFTERS / "dspark"), local_head="ngram")


def test_two_names_where_one_place_drafts_are_refused():
    with pytest.raises(InvalidField, match="colocated_drafter: 'lm' beside drafter 'dspark'"):
        locate(drafter="dspark", colocated_drafter="lm")
    assert names(locate(drafter="lm", colocated_drafter="lm")) == ("lm", None)
    # Without a draft process async is refused for that, and not for its names.
    assert names(locate(mode="async", drafter="dspark", colocated_drafter="lm")) == ("dspark", "lm")
    assert names(locate(mode="auto", drafts=1, drafter="dspark", colocated_drafter="lm")) == (
        "dspark",
        "lm",
    )
