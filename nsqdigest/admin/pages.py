"""The page: its files, as they stand in the package, under `/` and `/page/NAME`.

Invariants:
- What is served is what was read at the start: a path of a request is looked up in a table, and never opened.
- A browser keeps a file as long as its ETag is the same, and asks each time: after an upgrade it shows the new page.
  Icons it keeps without asking: that of a daemon that is away has to be there when the daemon is not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import NamedTuple

from aiohttp import web

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FIRST = "index.html"
_KEPT_S = 86_400


class _File(NamedTuple):
    body: bytes
    content_type: str
    etag: str

    @property
    def keeping(self) -> str:
        return f"max-age={_KEPT_S}" if self.content_type.startswith("image/") else "no-cache"


def routes() -> list[web.RouteDef]:
    return [web.get("/" if name == _FIRST else f"/page/{name}", _handler(file)) for name, file in _files().items()]


def _files() -> dict[str, _File]:
    found = {}
    for entry in resources.files("nsqdigest.admin").joinpath("page").iterdir():
        suffix = f".{entry.name.rpartition('.')[2]}"
        if suffix in _TYPES:
            body = entry.read_bytes()
            found[entry.name] = _File(body, _TYPES[suffix], hashlib.sha256(body).hexdigest()[:32])
    return found


def _handler(file: _File) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        headers = {"cache-control": file.keeping, "etag": f'"{file.etag}"'}
        wanted = request.if_none_match or ()
        if any(each.value in (file.etag, "*") for each in wanted):
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.body, headers=headers, content_type=file.content_type, charset="utf-8")

    return handle
