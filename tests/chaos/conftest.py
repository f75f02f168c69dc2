"""Fixtures of the tests that kill and stop processes."""

from __future__ import annotations

from support.stage import stage

__all__ = ["stage"]
