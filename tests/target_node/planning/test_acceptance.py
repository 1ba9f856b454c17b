"""What is known of acceptance without confidences, and how soon it follows the texts."""

from target_node.planning.acceptance import AcceptanceHistory


def see(history: AcceptanceHistory, count: int, verify_len: int, num_accepted: int) -> None:
    for _ in range(count):
        history.observe(verify_len, num_accepted)
        history.settle()


def test_what_was_seen_long_ago_weighs_little_however_much_it_was():
    history = AcceptanceHistory([0.7, 0.7])
    see(history, 100_000, 1, 1)
    assert history.confidences[0] > 0.99
    see(history, 1000, 1, 0)
    assert history.confidences[0] < 0.15
    see(history, 1000, 1, 1)
    assert history.confidences[0] > 0.85


def test_a_position_that_nobody_looks_at_goes_back_to_what_was_believed_of_it():
    history = AcceptanceHistory([0.7, 0.7])
    see(history, 200, 2, 1)
    assert history.confidences[1] < 0.2
    see(history, 2000, 1, 1)
    assert 0.65 < history.confidences[1] < 0.75
