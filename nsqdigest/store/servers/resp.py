"""Commands in the form of Redis' protocol (pure). A batch has thousands of arguments: packed one by one, as the driver
does it, they would cost a quarter of all that happens to an event here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Arguments(NamedTuple):
    """Several arguments of a command, each already behind its head."""

    size: int
    parts: list[bytes]


class Encoded(bytes):
    """A command that is in Redis' protocol already."""


Command = Sequence[bytes | str | int | Arguments] | Encoded

_HEADS = [b"\r\n$%d\r\n" % size_bytes for size_bytes in range(4097)]
"""What stands before an argument of so many bytes: the end of the one before it, and its own length."""


def _head(size_bytes: int) -> bytes:
    return _HEADS[size_bytes] if size_bytes < len(_HEADS) else b"\r\n$%d\r\n" % size_bytes


def arguments(texts: Sequence[bytes]) -> Arguments:
    sizes = [len(text) for text in texts]
    is_usual = max(sizes, default=0) < len(_HEADS)
    parts = [b""] * (2 * len(texts))
    parts[::2] = [_HEADS[size] for size in sizes] if is_usual else map(_head, sizes)
    parts[1::2] = texts
    return Arguments(len(texts), parts)


def packed(mixed: Sequence[bytes | str | int]) -> Arguments:
    """The same of texts and numbers."""
    return arguments(
        [
            each if isinstance(each, bytes) else each.encode() if isinstance(each, str) else b"%d" % each
            for each in mixed
        ]
    )


def prefixed(prefixes: Sequence[bytes], texts: Sequence[bytes]) -> Arguments:
    """For each text one argument with each prefix."""
    sizes = [len(text) for text in texts]
    step = 2 * len(prefixes)
    parts = [b""] * (step * len(sizes))
    for place, prefix in enumerate(prefixes):
        head_of = {size: _head(len(prefix) + size) + prefix for size in set(sizes)}
        heads = [*head_of.values()] * len(sizes) if len(head_of) == 1 else [head_of[size] for size in sizes]
        parts[2 * place :: step] = heads
        parts[2 * place + 1 :: step] = texts
    return Arguments(len(prefixes) * len(sizes), parts)


def reader(name: bytes, *behind: bytes) -> Callable[[bytes], Encoded]:
    """Encodes a command that has one key and then always the same arguments."""
    before = b"*%d\r\n$%d\r\n%s\r\n$" % (2 + len(behind), len(name), name)
    after = b"".join(b"\r\n$%d\r\n%s" % (len(each), each) for each in behind) + b"\r\n"
    return lambda key: Encoded(b"%s%d\r\n%s%s" % (before, len(key), key, after))


def encode(command: Command) -> bytes:
    if isinstance(command, Encoded):
        return command
    parts = [b"*%d" % count_of(command)]
    for each in command:
        if isinstance(each, Arguments):
            parts += each.parts
        else:
            text = each if isinstance(each, bytes) else str(each).encode()
            parts += (_head(len(text)), text)
    parts.append(b"\r\n")
    return b"".join(parts)


def count_of(command: Command) -> int:
    """How many arguments it has."""
    return sum([each.size if isinstance(each, Arguments) else 1 for each in command])
