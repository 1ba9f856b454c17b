import pytest

from specserve.config import SpeculationConfig
from specserve.drafter_source import locate_drafter
from specserve.errors import InvalidField
from specserve.target_source import EMBEDDED_TARGET


def locate(target=EMBEDDED_TARGET, **fields) -> SpeculationConfig:
    return locate_drafter(SpeculationConfig(mode="sync", **fields), target)


def test_nothing_is_looked_for_when_nobody_drafts(tmp_path):
    off = SpeculationConfig(drafter="nowhere")
    assert locate_drafter(off, tmp_path) is off


def test_prompt_lookup_needs_no_files(tmp_path):
    assert locate(tmp_path, drafter="ngram").drafter == "ngram"


def test_a_folder_becomes_absolute(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert locate(drafter="mine").drafter == str(tmp_path / "mine")


def test_a_target_of_ones_own_needs_a_drafter_of_ones_own(tmp_path):
    with pytest.raises(InvalidField, match=r"speculation\.drafter: is needed .* ngram"):
        locate(tmp_path)


@pytest.mark.parametrize("field", ["drafter", "local_head"])
def test_what_is_no_folder_is_refused_by_the_name_of_its_field(field):
    fields = {"drafter": str(EMBEDDED_TARGET)} | {field: "nothere"}
    with pytest.raises(InvalidField, match=rf"speculation\.{field}: 'nothere' is no folder"):
        locate(**fields)


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(InvalidField, match=r"config\.json is missing"):
        locate(drafter=str(tmp_path))


def test_prompt_lookup_takes_no_local_head():
    with pytest.raises(InvalidField, match=r"speculation\.local_head: .* not to ngram"):
        locate(drafter="ngram", local_head=str(EMBEDDED_TARGET))


def test_the_embedded_target_has_a_drafter_by_default():
    assert locate().drafter == str(EMBEDDED_TARGET.parent / "drafters" / "dspark")
