"""What is kept of a gateway's run: who failed, when, and whether texts stayed the same."""

from bench.clients.asked import Answer, Load, Transcript
from bench.clients.gateway import free_ports, gateway_words


def answer(number: int, began_s: float, ended_s: float, failure: str | None = None) -> Answer:
    return Answer(number, number % 2 == 1, began_s, ended_s, f"text {number}", failure)


def loaded(*answers: Answer, happened_s: float | None = None) -> Load:
    load = Load(["a prompt"], len(answers), 8)
    for each in answers:
        load.add(each)
    load.happened_s = happened_s
    return load


def test_something_happens_once_when_a_third_is_answered():
    happened: list[int] = []
    load = Load(["a prompt"], 6, 8)
    load.at_a_third = lambda: happened.append(len(load.answers))
    for number in range(6):
        load.add(answer(number, number, number + 0.5))
    assert happened == [2]
    assert load.happened_s is not None


def test_failures_are_told_apart_by_when_they_were_asked():
    load = loaded(
        answer(0, 0, 1), answer(1, 1, 6, "gone"), answer(2, 1, 7), answer(3, 6, 8, "again"),
        happened_s=5,
    )  # fmt: skip
    assert load.num_failed_later == 1
    transcript = Transcript()
    transcript.tell_load("a pass", load)
    assert transcript.lines == [
        "a pass: 4 requests, 2 failed",
        "  in flight at the kill: 2, of which failed 1",
        "  asked after the kill: 1, of which failed 1",
        "  request 1 (streamed), 1.00 s after: gone",
        "  request 3 (streamed), 3.00 s after: again",
    ]


def test_only_who_was_answered_both_times_is_compared():
    before = loaded(answer(0, 0, 1), answer(1, 0, 1, "gone"), answer(2, 0, 1))
    other = Answer(2, False, 0, 1, "another text", None)
    after = loaded(answer(0, 0, 1), answer(1, 0, 1), other, answer(3, 0, 1))
    transcript = Transcript()
    transcript.tell_difference(before, after)
    assert transcript.lines == ["answered both times: 2, with the same text 1"]


def test_a_gateway_is_told_every_worker():
    port, metrics_port = free_ports(2)
    words = gateway_words(port, metrics_port, ["127.0.0.1:1", "127.0.0.1:2"])
    place = words.index("--worker-urls")
    assert words[place + 1 : place + 3] == ["grpc://127.0.0.1:1", "grpc://127.0.0.1:2"]
    assert port != metrics_port
