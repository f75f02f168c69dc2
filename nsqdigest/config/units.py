"""Durations, sizes and addresses: read from the file's text, written back, and guessed from a mistake.

Reading is strict, with one notation for each; a mistake raises `Wrong` with a remedy. The guess is generous because it
only ever ends up in a message.
"""

from __future__ import annotations

import re
from typing import Any

from nsqdigest.base.host_names import LONGEST_LABEL, has_bad_length, ip_version, is_name
from nsqdigest.base.moments import DURATION_UNITS_MS, format_duration
from nsqdigest.config.model import Address, UnixSocket
from nsqdigest.config.problems import Wrong

SIZE_UNITS_BYTES = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
LONGEST_MS = 3650 * DURATION_UNITS_MS["d"]
"""Ten years: beyond it is a slip, and instants stay exact as doubles."""

_DURATION = re.compile(r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,12})s)?(?:([0-9]{1,12})ms)?")
_SIZE = re.compile(r"([0-9]{1,12})(B|KiB|MiB|GiB)")
_NUMBER = r"([0-9]{1,12}(?:\.[0-9]{1,3})?)"
_LOOSE_PART = re.compile(_NUMBER + r"\s*([a-zA-Z]*)\s*(?:,|and\b)?\s*")

_LONGEST_SOCKET_BYTES = 107
"""The kernel's limit for the path of a Unix socket."""
_ADDRESS = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+)):([0-9]{1,9})")

_DURATION_WORDS = {
    "ms": ("msec", "msecs", "milli", "millis", "millisecond", "milliseconds"),
    "s": ("sec", "secs", "second", "seconds"),
    "m": ("min", "mins", "minute", "minutes"),
    "h": ("hr", "hrs", "hour", "hours"),
    "d": ("day", "days"),
}
_UNIT_OF_WORD = {word: unit for unit, words in _DURATION_WORDS.items() for word in (unit, *words)}


def format_size(size_bytes: int) -> str:
    for unit, unit_bytes in SIZE_UNITS_BYTES.items():
        if size_bytes >= unit_bytes and size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes}{unit}"
    return f"{size_bytes}B"


def _bare_number(value: Any) -> str:
    """A number without a unit, as text; "" where it is none."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return str(value) if value < 10**12 else ""
    if isinstance(value, str) and (digits := re.fullmatch(r" *([0-9]{1,12}) *", value)):
        return str(int(digits.group(1)))
    return ""


def guess_duration(value: Any) -> str:
    """The duration that is probably meant, in our notation; "" where nothing fits."""
    if number := _bare_number(value):
        return _possible(f"{number}s")
    text = str(value) if isinstance(value, float) else value
    if not isinstance(text, str):
        return ""
    total_ms = 0.0
    written = ""
    smallest_ms = LONGEST_MS
    exact = True
    position = 0
    text = text.strip().lower()
    while position < len(text):
        part = _LOOSE_PART.match(text, position)
        if part is None:
            return ""
        word = part.group(2) or ("s" if isinstance(value, float) else "")
        unit = "d" if word in ("w", "wk", "week", "weeks") else _UNIT_OF_WORD.get(word)
        if unit is None:
            return ""
        count = float(part.group(1)) * (7 if word[0] == "w" else 1)
        unit_ms = DURATION_UNITS_MS[unit]
        exact = exact and count.is_integer() and unit_ms < smallest_ms
        smallest_ms = unit_ms
        written += f"{count:.0f}{unit}"
        total_ms += count * unit_ms
        position = part.end()
    return _possible(written if exact else format_duration(round(total_ms)))


def _possible(guess: str) -> str:
    total_ms = _read_duration(guess)
    return guess if total_ms is not None and total_ms <= LONGEST_MS else ""


def _read_duration(value: Any) -> int | None:
    match = _DURATION.fullmatch(value) if isinstance(value, str) and value else None
    if match is None:
        return None
    counts = zip(match.groups(), DURATION_UNITS_MS.values(), strict=True)
    return sum(int(count) * unit_ms for count, unit_ms in counts if count is not None)


def duration_ms(value: Any) -> int:
    total_ms = _read_duration(value)
    if total_ms is None:
        guess = guess_duration(value)
        like = 'write one like "30s", "5m" or "1h30m"'
        raise Wrong("is not a duration", f'write "{guess}"' if guess else like, like)
    if total_ms > LONGEST_MS:
        raise Wrong("is too long", f'write "{format_duration(LONGEST_MS)}" or less')
    return total_ms


def guess_size(value: Any) -> str:
    if number := _bare_number(value):
        return f"{number}B"
    match = re.fullmatch(_NUMBER + r"\s*([a-zA-Z]+)", value.strip()) if isinstance(value, str) else None
    if match is None:
        return ""
    letter = match.group(2).lower().removesuffix("ytes").removesuffix("yte").removesuffix("ib").removesuffix("b")
    unit = {"": "B", "k": "KiB", "kilo": "KiB", "m": "MiB", "mega": "MiB", "g": "GiB", "giga": "GiB"}.get(letter)
    if unit is None:
        return ""
    number = match.group(1)
    return f"{int(number)}{unit}" if number.isdigit() else format_size(round(float(number) * SIZE_UNITS_BYTES[unit]))


def size_bytes(value: Any) -> int:
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        guess = guess_size(value)
        like = 'write one like "64KiB" or "1MiB"'
        raise Wrong("is not a size", f'write "{guess}"' if guess else like, like)
    return int(match.group(1)) * SIZE_UNITS_BYTES[match.group(2)]


def _is_v6(text: str) -> bool:
    return ip_version(text) == 6


def _read_address(text: str) -> Address | None:
    """Host and port; the port may be out of range."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not (_is_v6(match.group(1)) if match.group(1) else is_name(match.group(2))):
        return None
    return Address(match.group(1) or match.group(2), int(match.group(3)))


def guess_address(text: str, usual_port: int) -> str:
    bare = re.sub(r"^[a-z+]+://", "", text.strip()).rstrip("/")
    host, _, port = bare.rpartition(":")
    guess = bare
    if _is_v6(host) and re.fullmatch(r"[1-9][0-9]{3,4}", port):
        guess = f"[{host}]:{port}"
    elif _is_v6(bare):
        guess = f"[{bare}]:{usual_port}"
    elif re.fullmatch(r":?[0-9]+", bare):
        guess = f"127.0.0.1:{bare.removeprefix(':')}"
    elif ":" not in bare or bare.endswith("]"):
        guess = f"{bare}:{usual_port}"
    read = _read_address(guess)
    return guess if read is not None and 1 <= read.port <= 65535 else ""


def address(text: str, usual_port: int) -> Address:
    read = _read_address(text)
    if read is None:
        guess = guess_address(text, usual_port)
        like = f'write one like "127.0.0.1:{usual_port}" or "[::1]:{usual_port}"'
        if not guess and (match := _ADDRESS.fullmatch(text)) and match.group(2) and has_bad_length(match.group(2)):
            raise Wrong(f"has a host name with a part that is empty or longer than {LONGEST_LABEL} characters", like)
        raise Wrong("is not an address", f'write "{guess}"' if guess else like, like)
    if not 1 <= read.port <= 65535:
        raise Wrong(f"has port {read.port}", f"write one from 1 to 65535, such as {usual_port}")
    return read


def unix_socket(text: str) -> UnixSocket:
    path = text.removeprefix("unix:")
    like = 'write one like "unix:/run/nsqdigest/admin.sock"'
    if path.startswith("//"):
        raise Wrong("is not the path of a socket", f'write "unix:/{path.lstrip("/")}"')
    if not path.startswith("/") or path.endswith("/") or not path.isprintable():
        raise Wrong("is not the whole path of a socket", like)
    if len(path.encode()) > _LONGEST_SOCKET_BYTES:
        raise Wrong(f"is longer than the {_LONGEST_SOCKET_BYTES} bytes that a socket's path may have", like)
    return UnixSocket(path)
