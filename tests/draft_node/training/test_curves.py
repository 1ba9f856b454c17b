"""The curves that travel with a drafter: what is in them, and what is there without matplotlib."""

from draft_node.training import curves
from draft_node.training.export import CHECKSUMS

HISTORY = [
    {"active_s": 1.23456, "tokens": 2048, "chat": 1.5},
    {"active_s": 2.5, "tokens": 4096, "chat": 1.75, "text": 2.0},
]


def test_a_table_has_a_row_for_each_evaluation_and_a_column_for_each_figure(tmp_path):
    curves.write_curves(HISTORY, tmp_path)
    assert (tmp_path / curves.TABLE).read_text().splitlines() == [
        "active_s,tokens,chat,text",
        "1.2346,2048,1.5,",
        "2.5,4096,1.75,2.0",
    ]


def test_no_picture_of_an_earlier_run_stays_where_none_can_be_drawn(tmp_path, monkeypatch):
    (tmp_path / curves.PICTURE).write_bytes(b"of another run")
    monkeypatch.setattr(curves, "find_spec", lambda name: None)
    curves.write_curves(HISTORY, tmp_path)
    assert not (tmp_path / curves.PICTURE).exists()
    assert curves.TABLE in (tmp_path / CHECKSUMS).read_text()
    assert curves.PICTURE not in (tmp_path / CHECKSUMS).read_text()
