"""The Unix socket of `admin.listen = "unix:PATH"`: who listens there, and how to listen and to connect.

Invariants:
- A socket of a daemon that ended is replaced. One that a living process listens on is not, and neither is a file of
  another kind.
- Owner and group may connect, others may not (0660), from the first instant on.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import stat
import struct

from nsqdigest.base.errors import Unreachable

_MODE = 0o660
_LOOKS_FOR_S = 1.0
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a peer."""


def is_taken(path: str) -> bool:
    """Whether a process listens there. Raises Unreachable if no daemon could listen there."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        folder = os.path.dirname(path)
        if os.path.isdir(folder):
            return False
        raise Unreachable(
            f"{folder} is not there; make this folder (config/nsqdigest.service does: RuntimeDirectory=nsqdigest)"
        ) from None
    except OSError as error:
        raise Unreachable(f"{path}: {error.strerror}; let this user into its folder") from None
    if not stat.S_ISSOCK(status.st_mode):
        raise Unreachable(f"{path} is there and is not a socket; move it away, or write another path")
    try:
        connected(path, _LOOKS_FOR_S).close()
    except ConnectionRefusedError:
        return False
    except PermissionError:
        raise Unreachable(f"this user may not open {path}; join the group of the socket, or remove it") from None
    except OSError:
        return True  # its queue is full, or it has just ended
    return True


def listening(path: str) -> socket.socket:
    """Raises Unreachable."""
    if is_taken(path):
        raise Unreachable(f"a process listens on {path} already; is another daemon running?")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener.bind(path)
        os.chmod(path, _MODE)  # nobody connects before it listens
    except OSError as error:
        listener.close()
        raise Unreachable(
            f"cannot listen on {path}: {error.strerror or error}; let this user write to its folder"
        ) from error
    return listener


def remove(path: str, listener_inode: int) -> None:
    """Unless another daemon has put its own there."""
    with contextlib.suppress(OSError):
        if os.stat(path).st_ino == listener_inode:
            os.unlink(path)


def connected(path: str, timeout_s: float) -> socket.socket:
    """Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


class Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path
        self._timeout_s = timeout_s

    def connect(self) -> None:
        self.sock = connected(self._path, self._timeout_s)


def user_of(connection: socket.socket) -> str:
    """The user at the other end, "uid 1000"; "unix" if the system does not say."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return "unix"
    with contextlib.suppress(OSError):
        _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
        return f"uid {uid}"
    return "unix"
