"""A TCP proxy that hangs up on every connection which says a certain word, before the word gets through."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

from support.ports import HOST, free_port
from support.waiting import PATIENCE_S


class CuttingProxy:
    """`with CuttingProxy() as proxy: proxy.start(target, b"word")`. Each connection has two threads."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, free_port()), backlog=128)
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._word = b""
        self.cut = 0

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def start(self, target: tuple[str, int], word: bytes) -> None:
        self._word = word
        self._run(self._accept, target)

    def relent(self) -> None:
        """Lets everything through from now on."""
        self._word = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            _close(each)
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _run(self, work: object, *arguments: object) -> None:
        assert callable(work)
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, target: tuple[str, int]) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            try:
                server = socket.create_connection(target)
            except OSError:
                _close(client)
                continue
            with self._lock:
                self._sockets += [client, server]
            self._run(self._pass_on, client, server, True)
            self._run(self._pass_on, server, client, False)

    def _pass_on(self, source: socket.socket, sink: socket.socket, listens: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if listens and self._word and self._word in data:
                    self.cut += 1
                    break
                sink.sendall(data)
        for each in (source, sink):
            _close(each)


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it was not connected any more
        each.shutdown(socket.SHUT_RDWR)
    each.close()
