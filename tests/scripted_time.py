"""Time that passes when a test says so."""


class ScriptedTime:
    """In place of a module's `time`."""

    def __init__(self):
        self.now_s = 50.0

    def perf_counter(self):
        return self.now_s

    def monotonic(self):
        return self.now_s
