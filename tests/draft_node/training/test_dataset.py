"""What runs share below --work is made by one of them, and the others wait for it."""

import logging
import threading

from draft_node.training.dataset import preparing


def test_a_second_run_waits_until_the_first_has_its_text(tmp_path, caplog):
    order: list[str] = []

    def second() -> None:
        with preparing(tmp_path / "work"):
            order.append("second")

    waiting = threading.Thread(target=second)
    with caplog.at_level(logging.INFO), preparing(tmp_path / "work"):
        waiting.start()
        waiting.join(0.2)
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]
    assert "another run prepares its text" in caplog.text
