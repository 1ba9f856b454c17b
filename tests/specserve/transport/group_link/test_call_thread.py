"""Who calls, in which order, and what comes after an error."""

import gc
import threading
import weakref

import pytest

from specserve.transport.group_link.call_thread import CallThread


@pytest.fixture
def thread():
    made = CallThread("calls")
    yield made
    made.end(0)
    made.join()
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
    await_all(thread)
    assert callers == [(i, "calls") for i in range(1, 6)]
    assert [call.result() for call in calls] == [1, 2, 3, 4, 5]


def await_all(thread: CallThread) -> None:
    reached = threading.Event()
    last = thread.make(lambda: reached.set() or True)
    while last.result() is None:
        reached.wait(0.01)


def test_whoever_asks_does_not_wait(thread):
    may_go_on = threading.Event()
    slow = thread.make(lambda: may_go_on.wait(30))
    behind = thread.make(lambda: 2)
    assert slow.result() is None
    assert behind.result() is None
    may_go_on.set()
    await_all(thread)
    assert (slow.result(), behind.result()) == (True, 2)


@pytest.mark.parametrize("error", [RuntimeError("remote process exited"), TypeError("a defect")])
def test_nothing_is_called_after_an_error_and_all_hear_of_it(thread, error: Exception):
    """An error may leave the thread unable to call, as torch's NCCL does. Of defects, too."""
    before = thread.make(lambda: 1)
    called = []
    failed = thread.make(raising(error))
    behind = [thread.make(lambda: called.append(1)) for _ in range(3)]
    while behind[-1].failure is None:
        threading.Event().wait(0.01)
    assert before.result() == 1
    for call in (failed, *behind):
        with pytest.raises(RuntimeError, match=str(error)):
            call.result()
    assert called == []


def test_another_thread_calls_again(thread):
    thread.make(raising(OSError("gone")))
    thread.end(5)
    other = CallThread("calls")
    call = other.make(lambda: 1)
    await_all(other)
    other.end(5)
    other.join()
    assert call.result() == 1


def test_an_end_waits_for_the_call_that_is_made_and_begins_no_other(thread):
    has_begun, may_go_on, called = threading.Event(), threading.Event(), []
    thread.make(lambda: has_begun.set() or may_go_on.wait(30))
    behind = thread.make(lambda: called.append(1))
    assert has_begun.wait(30)
    assert not thread.end(0.05)
    may_go_on.set()
    assert thread.end(30)
    thread.join()
    assert called == []
    assert behind.result() is None


def test_what_failed_keeps_nothing_of_what_it_was_called_with(thread):
    class Group:
        def send(self):
            raise RuntimeError("gone")

    group = Group()
    kept = weakref.ref(group)
    gc.disable()
    try:
        call = thread.make(group.send)
        while call.failure is None:
            threading.Event().wait(0.01)
        with pytest.raises(RuntimeError, match="gone"):
            call.result()
        del group
        assert kept() is None
    finally:
        gc.enable()
