"""What the bytes of one connection mean: one answer after the other (pure; llhttp reads, by httptools).

Invariants:
- Memory is bounded whatever comes: `HEAD_BYTES` of headers in `MOST_HEADERS` lines, interim answers included, and
  `BEGINNING_BYTES` of a body.
- Once `status` is set it stays what it is: nothing that comes behind the headers changes it or raises.
- Answers with a status of 1xx are skipped; 101 ends the connection's use, because nobody asked for it.
- The same bytes mean the same however they are cut into pieces.

Lenient are the same three things as in aiohttp's client: odd characters in header values, lines that end with LF alone,
blanks behind the size of a chunk.
"""

from __future__ import annotations

from typing import NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from nsqdigest.base.http.errors import NoHttp

HEAD_BYTES = 64 * 1024
MOST_HEADERS = 100
BEGINNING_BYTES = 256
"""Of a body: what is kept."""

_SWITCHING = 101
_RETRY_AFTER, _CONTENT_TYPE = b"retry-after", b"content-type"


class Response(NamedTuple):
    status: int
    retry_after: str | None
    content_type: str | None
    beginning: bytes
    """The first bytes of the body, as far as they had come."""
    reusable: bool
    """Whether the connection can serve another post. A body of which the rest is awaited counts as not."""


_as_response = tuple.__new__


class AnswerReader:
    """`begin` for each request, `feed` with what is read; then `status`, `complete` and the rest tell how far it is."""

    __slots__ = (
        "_parser", "_refused", "begun", "body_bytes", "complete", "content_type", "head_bytes", "headers",
        "keep_alive", "kept", "retry_after", "status", "surplus",
    )  # fmt: skip

    def __init__(self) -> None:
        parser = HttpResponseParser(self)
        parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._parser: HttpResponseParser | None = parser
        self.surplus = False
        """More came than one answer: the connection is of no further use."""
        self.begin()

    def begin(self) -> None:
        self._refused = ""
        self.begun = False
        """Whether one byte has come."""
        self.status = 0
        """Of the final answer, once its headers are complete; else 0."""
        self.retry_after: str | None = None
        self.content_type: str | None = None
        self.head_bytes = 0
        self.headers = 0
        self.body_bytes = 0
        """Read since the headers were complete, framing included; what came together with them does not count."""
        self.kept = b""
        self.complete = False
        self.keep_alive = False

    def release(self) -> None:
        """The parser and its callbacks refer to each other: without this only the collector would free them."""
        self._parser = None

    def feed(self, data: bytes) -> None:
        """Raises `NoHttp` while there is no status yet."""
        self.begun = True
        if self.status:
            self.body_bytes += len(data)
            self._parse(data)
            return
        room_bytes = HEAD_BYTES - self.head_bytes
        self.head_bytes += len(data)
        if len(data) <= room_bytes:
            self._parse(data)
            return
        if not self._parse(data[:room_bytes]):
            raise NoHttp(f"more than {HEAD_BYTES} bytes of headers", data[:BEGINNING_BYTES])
        self._parse(data[room_bytes:])

    def _parse(self, data: bytes) -> bool:
        """Returns whether there is a status."""
        if self._parser is None or self.surplus:
            return bool(self.status)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self.surplus = True
        except HttpParserError:
            self.surplus = True
            if not self.status:
                raise NoHttp(self._refused or "its bytes are not an answer of HTTP/1", data[:BEGINNING_BYTES]) from None
        return bool(self.status)

    def response(self, reusable: bool) -> Response:
        fields = self.status, self.retry_after, self.content_type, self.kept, reusable
        return _as_response(Response, fields)

    # -- called by the parser

    def on_message_begin(self) -> None:
        if self.complete:
            self.surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            return  # a trailer
        self.headers += 1
        if self.headers > MOST_HEADERS:
            self._refuse(f"more than {MOST_HEADERS} headers")
        length = len(name)
        if length == len(_RETRY_AFTER) and name.lower() == _RETRY_AFTER:
            if self.retry_after is None:
                self.retry_after = value.decode("latin-1")
        elif length == len(_CONTENT_TYPE) and name.lower() == _CONTENT_TYPE and self.content_type is None:
            self.content_type = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        if self.status:
            return
        status = self._parser.get_status_code()
        if status >= 200 or status == _SWITCHING:
            self.status = status
            return
        if status < 100:
            self._refuse("the status is below 100")
        self.retry_after = self.content_type = None

    def on_body(self, data: bytes) -> None:
        if len(self.kept) < BEGINNING_BYTES and not self.complete:
            self.kept += data[: BEGINNING_BYTES - len(self.kept)]

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self.status and not self.complete:
            self.complete = True
            self.keep_alive = self.status != _SWITCHING and self._parser.should_keep_alive()

    def _refuse(self, reason: str) -> None:
        self._refused = reason
        raise NoHttp(reason)
