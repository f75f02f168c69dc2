"""Fixtures of the daemon's tests."""

from support.follower import started

__all__ = ["started"]
