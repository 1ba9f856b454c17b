"""What is known of acceptance without confidences, and how soon it follows the texts."""

from target_node.budget import AcceptanceHistory


def test_what_was_seen_long_ago_weighs_little_however_much_it_was():
    history = AcceptanceHistory(2)
    for _ in range(100_000):
        history.observe(1, 1)
        history.settle()
    assert history.confidences[0] > 0.99
    for _ in range(1000):
        history.observe(1, 0)
        history.settle()
    assert history.confidences[0] < 0.15
    for _ in range(1000):
        history.observe(1, 1)
        history.settle()
    assert history.confidences[0] > 0.85


def test_a_position_that_nobody_looks_at_goes_back_to_what_was_believed_of_it():
    history = AcceptanceHistory(2, prior=0.7)
    for _ in range(200):
        history.observe(2, 1)
        history.settle()
    assert history.confidences[1] < 0.2
    for _ in range(2000):
        history.observe(1, 1)
        history.settle()
    assert 0.65 < history.confidences[1] < 0.75
