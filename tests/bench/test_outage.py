"""The bench of outages with real services, cut short."""

import msgspec
import pytest

from bench.outage import Results, main
from bench.writing import REPORT_FILE, RESULTS_FILE


@pytest.mark.slow
def test_a_killed_and_a_hung_draft_are_measured_and_change_no_text(tmp_path):
    words = ["--prompts", "2", "--tokens", "24", "--ballast", "10M", "--unpinned"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    results = msgspec.json.decode((tmp_path / RESULTS_FILE).read_bytes(), type=Results)
    assert set(results.summary) == {
        f"{fault}, {name}" for fault in ("killed", "hung") for name in ("by default", "skip")
    }
    for found in results.summary.values():
        assert found is not None
        assert found.num_prompts == 2
        assert found.value > 0
    assert results.num_returned == 0
    assert "killed" in (tmp_path / REPORT_FILE).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("field", "value"), [("--ballast", "huge"), ("--prompts", "0"), ("--tokens", "1")]
)
def test_what_cannot_be_measured_is_refused(tmp_path, capsys, field, value):
    assert main([field, value, "--out", str(tmp_path)]) == 1
    assert field in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
