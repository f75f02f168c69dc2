"""Durations and instants in words (pure)."""

from __future__ import annotations

from datetime import UTC, datetime

DURATION_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_HOUR_MS = DURATION_UNITS_MS["h"]


def format_duration(duration_ms: int) -> str:
    """The shortest notation, as the file takes it: `1h30m`."""
    text = ""
    for unit, unit_ms in DURATION_UNITS_MS.items():
        count, duration_ms = divmod(duration_ms, unit_ms)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def span(duration_ms: int) -> str:
    """How long, as precise as it is of use: 250ms, 4m12s, 3h5m, 2d4h."""
    if duration_ms >= _HOUR_MS:
        step_ms = 60_000 if duration_ms < 24 * _HOUR_MS else _HOUR_MS
    else:
        step_ms = 1000 if duration_ms >= 1000 else 1
    return format_duration(duration_ms // step_ms * step_ms)


def instant(instant_ms: int) -> str:
    try:
        return datetime.fromtimestamp(instant_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "?"  # what no script wrote may be any number


def until(instant_ms: int, now_ms: int) -> str:
    if instant_ms > now_ms:
        return f"in {span(instant_ms - now_ms)}"
    return f"{span(now_ms - instant_ms)} ago" if now_ms - instant_ms >= 1000 else "now"
