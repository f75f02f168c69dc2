"""An auth server as nsqd asks one (`--auth-http-address`): who has which secret may do what, in a thread of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from support.ports import HOST

Permissions = list[dict[str, Any]]

EVERYTHING: Permissions = [{"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}]


class AuthServer:
    """`with AuthServer({"secret": EVERYTHING}) as server:`. It refuses secrets that it does not know."""

    def __init__(self, permissions: Mapping[str, Permissions]) -> None:
        self.asked: list[dict[str, str]] = []
        """What nsqd said about each client: secret, remote_ip, tls, common_name."""
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
                asked.append(query)
                allowed = permissions.get(query.get("secret", ""))
                body = json.dumps({"ttl": 3600, "identity": "test", "authorizations": allowed or []}).encode()
                self.send_response(403 if allowed is None else 200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def address(self) -> str:
        return f"{HOST}:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
