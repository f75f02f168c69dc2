"""Commands in the form of Redis' protocol (pure). A batch has thousands of arguments: packed one by one, as the driver
does it, they would cost a quarter of all that happens to an event here.

Whoever makes a command only names its arguments, many of a kind together (`Arguments`); all packing is done here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Arguments(NamedTuple):
    """Several arguments of a command: each of the texts; with prefixes, of each text one with each prefix."""

    texts: Sequence[bytes]
    prefixes: Sequence[bytes] = ()


Words = Sequence[bytes | str | int | Arguments]
Command = Words | bytes
"""As bytes it is in Redis' protocol already."""

_HEADS = [b"\r\n$%d\r\n" % size_bytes for size_bytes in range(4097)]
"""What stands before an argument of so many bytes: the end of the one before it, and its own length."""


def _head(size_bytes: int) -> bytes:
    return _HEADS[size_bytes] if size_bytes < len(_HEADS) else b"\r\n$%d\r\n" % size_bytes


def packed(mixed: Sequence[bytes | str | int]) -> Arguments:
    """Texts and numbers."""
    return Arguments(
        [
            each if isinstance(each, bytes) else each.encode() if isinstance(each, str) else b"%d" % each
            for each in mixed
        ]
    )


def reader(name: bytes, *behind: bytes) -> Callable[[bytes, Sequence[bytes]], list[bytes]]:
    """Encodes commands that have one key and then always the same arguments: one for each key, of its prefix and a
    text."""
    before = b"*%d\r\n$%d\r\n%s\r\n$" % (2 + len(behind), len(name), name)
    after = b"".join(b"\r\n$%d\r\n%s" % (len(each), each) for each in behind) + b"\r\n"

    def commands(prefix: bytes, texts: Sequence[bytes]) -> list[bytes]:
        form = before + b"%d\r\n" + prefix.replace(b"%", b"%%") + b"%s" + after
        size_bytes = len(prefix)
        return [form % (size_bytes + len(text), text) for text in texts]

    return commands


def script_call(sha: bytes, keys: Words, arguments: Words) -> bytes:
    """An EVALSHA."""
    return encode([b"EVALSHA", sha, count_of(keys), *keys, *arguments])


def encode(command: Command) -> bytes:
    if isinstance(command, bytes):
        return command
    parts = [b"*%d" % count_of(command)]
    for each in command:
        if isinstance(each, Arguments):
            parts += _of_prefixed(*each) if each.prefixes else _of_texts(each.texts)
        else:
            text = each if isinstance(each, bytes) else str(each).encode()
            parts += (_head(len(text)), text)
    parts.append(b"\r\n")
    return b"".join(parts)


def count_of(words: Words) -> int:
    """How many arguments they are."""
    return sum([len(each.texts) * (len(each.prefixes) or 1) if isinstance(each, Arguments) else 1 for each in words])


def _of_texts(texts: Sequence[bytes]) -> list[bytes]:
    sizes = [*map(len, texts)]
    is_usual = max(sizes, default=0) < len(_HEADS)
    parts = [b""] * (2 * len(texts))
    parts[::2] = map(_HEADS.__getitem__ if is_usual else _head, sizes)
    parts[1::2] = texts
    return parts


def _of_prefixed(texts: Sequence[bytes], prefixes: Sequence[bytes]) -> list[bytes]:
    sizes = [*map(len, texts)]
    step = 2 * len(prefixes)
    parts = [b""] * (step * len(sizes))
    for place, prefix in enumerate(prefixes):
        head_of = {size: _head(len(prefix) + size) + prefix for size in set(sizes)}
        heads = [*head_of.values()] * len(sizes) if len(head_of) == 1 else [head_of[size] for size in sizes]
        parts[2 * place :: step] = heads
        parts[2 * place + 1 :: step] = texts
    return parts
