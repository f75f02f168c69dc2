"""The scripts by themselves, every call watched."""

from __future__ import annotations

from support.store import store

__all__ = ["store"]
