"""Fixtures of the tests of the whole path."""

from __future__ import annotations

from support.stage import stage

__all__ = ["stage"]
