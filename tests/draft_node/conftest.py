"""Fixtures of the draft node's tests."""

from tests.draft_node.drafters.conftest import target

__all__ = ["target"]
