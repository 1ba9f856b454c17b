"""Chats that a target writes itself: where its questions come from, and how they are kept."""
