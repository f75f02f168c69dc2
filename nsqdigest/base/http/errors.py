"""Why a post got no answer.

Invariants: the text of an error is ours. It names the receiver's host and port, and holds nothing that the receiver
wrote and nothing of the URL's path, query or login.
"""

from __future__ import annotations

from nsqdigest.base.errors import NsqdigestError


class PostFailed(NsqdigestError):
    """The root."""


class ConnectFailed(PostFailed):
    """There is no connection: nothing was sent."""


class TlsFailed(ConnectFailed):
    """The TLS handshake failed, or the certificate was refused: nothing was sent."""


class Overdue(PostFailed):
    """The time-out of the post ended before the headers of an answer were complete."""


class Closed(PostFailed):
    """The connection ended before the headers of an answer were complete. The receiver may have read the post."""


class StaleConnection(Closed):
    """The same, without one byte of an answer, on a connection that had served an earlier post.

    Most probably the receiver closed the idle connection while the post was on its way. To post again at once, on a new
    connection, is safe wherever a receiver may get a post twice.
    """


class NoHttp(PostFailed):
    """What came is not an HTTP/1 answer, or its headers are too large."""

    def __init__(self, reason: str, beginning: bytes = b"") -> None:
        super().__init__(reason)
        self.beginning = beginning
        """Of the bytes that were refused: in the receiver's words."""
