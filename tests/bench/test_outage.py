"""The bench of outages with real services, cut short."""

import msgspec
import pytest

from bench.outage import Results, main
from bench.writing import REPORT_FILE, RESULTS_FILE

pytestmark = pytest.mark.slow


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


def test_an_unknown_size_is_refused_before_anything_starts(tmp_path, capsys):
    assert main(["--ballast", "huge", "--out", str(tmp_path)]) == 1
    assert "--ballast" in capsys.readouterr().err
