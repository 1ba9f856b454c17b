"""Stop signals take effect once, and not in the middle of what may not be interrupted."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from specserve.processes import stop_signals
from specserve.processes.stop_signals import (
    heard_stops,
    interrupts_merged,
    stops_deferred,
    stops_unwind,
)

pytestmark = pytest.mark.usefixtures("nobody_handles_stops")


def test_only_the_first_signal_unwinds():
    cleaned_up = []

    @contextmanager
    def cleaning_up() -> Iterator[None]:
        try:
            yield
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleaned_up.append(True)

    with pytest.raises(SystemExit) as ended, stops_unwind(), cleaning_up():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143
    assert cleaned_up


def test_an_interrupt_that_comes_twice_at_once_is_one(monkeypatch):
    now_s = [7.0]
    monkeypatch.setattr(stop_signals.time, "monotonic", lambda: now_s[0])
    before, num_heard = signal.getsignal(signal.SIGINT), 0
    with interrupts_merged():
        for after_s, is_heard in ((0.0, True), (0.1, False), (0.4, False), (2.0, True)):
            now_s[0] += after_s
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                num_heard += 1
                assert is_heard
    assert num_heard == 2
    assert signal.getsignal(signal.SIGINT) == before


def test_who_handles_interrupts_still_does():
    heard = []
    signal.signal(signal.SIGINT, lambda *_: heard.append(True))
    try:
        with interrupts_merged():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert heard == [True, True]


def test_one_inside_another_unwinds_both():
    with pytest.raises(SystemExit), stops_unwind(), stops_unwind():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("signum", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_deferred_signal_takes_effect_at_the_end(signum, error):
    handed_on = []
    with pytest.raises(error), stops_unwind(), stops_deferred(lambda: handed_on.append(signum)):
        signal.raise_signal(signum)
    assert handed_on == [signum]


def test_under_nohup_a_hangup_is_not_heard():
    assert signal.SIGHUP in heard_stops()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert heard_stops() == [signal.SIGINT, signal.SIGTERM]


def test_outside_the_main_thread_signals_are_left_alone():
    done = []

    def work() -> None:
        with stops_unwind(), stops_deferred():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
