"""What children do to themselves before they work."""

import ctypes
import threading

from specserve.processes.process import sleep_exactly

_PR_GET_TIMERSLACK = 30


def test_a_thread_that_asks_for_it_wakes_on_time_and_no_other_does():
    prctl, found = ctypes.CDLL(None).prctl, []

    def ask():
        sleep_exactly()
        found.append(prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0))

    before = prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0)
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == [1000]
    assert prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0) == before
