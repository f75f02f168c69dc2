"""Fixtures of the tests of the whole path."""

from __future__ import annotations

from support.stage import stage
from support.stores import open_store

__all__ = ["open_store", "stage"]
