"""What is known of acceptance without confidences, and how soon it follows the texts."""

from target_node.planning.acceptance import Acceptance, AcceptanceHistory


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


def test_one_drafters_blocks_of_two_lengths_are_known_by_each_other():
    whole = Acceptance(8)
    long, short = whole.of_blocks(8), whole.of_blocks(2)
    see(long.of("greedy"), 500, 8, 3)
    assert len(short.survivals("greedy")) == len(short.freeze().survivals("greedy")) == 2
    assert short.survivals("greedy") == long.survivals("greedy")[:2]
    assert short.survivals("greedy")[1] > 0.95
    assert long.freeze().survivals("greedy")[3] < 0.1
