"""Who calls, in which order, and what comes after an error."""

import threading

import pytest

from specserve.group_link.call_thread import CallThread


@pytest.fixture
def thread():
    made = CallThread("calls")
    yield made
    made.close()
    assert not [each for each in threading.enumerate() if each.name == "calls"]


def raising(error: Exception):
    def call():
        raise error

    return call


def test_calls_are_made_in_order_by_another_thread(thread):
    callers = []
    calls = [
        thread.make(lambda i=i: (callers.append((i, threading.current_thread().name)), i)[1])
        for i in range(1, 6)
    ]
    thread.close()
    assert callers == [(i, "calls") for i in range(1, 6)]
    assert [call.result() for call in calls] == [1, 2, 3, 4, 5]


def test_whoever_asks_does_not_wait(thread):
    may_go_on = threading.Event()
    slow = thread.make(lambda: may_go_on.wait(30))
    behind = thread.make(lambda: 2)
    assert slow.result() is None
    assert behind.result() is None
    may_go_on.set()
    thread.close()
    assert (slow.result(), behind.result()) == (True, 2)


def test_nothing_is_called_after_an_error_and_all_hear_of_it(thread):
    """An error leaves the thread unable to call, as torch's NCCL does."""
    before = thread.make(lambda: 1)
    called = []
    failed = thread.make(raising(RuntimeError("remote process exited")))
    behind = [thread.make(lambda: called.append(1)) for _ in range(3)]
    thread.close()
    assert before.result() == 1
    for call in (failed, *behind):
        with pytest.raises(RuntimeError, match="remote process exited"):
            call.result()
    assert called == []


def test_another_thread_calls_again(thread):
    thread.make(raising(OSError("gone")))
    thread.close()
    other = CallThread("calls")
    call = other.make(lambda: 1)
    other.close()
    assert call.result() == 1
