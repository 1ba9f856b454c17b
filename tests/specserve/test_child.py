"""A child that cannot be started leaves nothing behind."""

import os

import pytest

from specserve import child
from specserve.child import Child, ChildCommand


def test_a_child_that_cannot_be_started_leaves_no_descriptor_open(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(child.subprocess, "Popen", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError):
        Child(ChildCommand(role="draft", rank=0, module="draft_node"), tmp_path, tmp_path)
    assert len(os.listdir("/proc/self/fd")) == len(before)
