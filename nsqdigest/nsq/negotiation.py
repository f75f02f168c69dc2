"""The body of IDENTIFY, the meaning of nsqd's answer, and of its refusals to an operator (pure).

Invariants:
- Safety (TLS, AUTH) is required: where the file asks for it and nsqd does not offer it, the connection is refused.
- Economy (compression) is optional: where nsqd does not offer it, the connection goes on without, with a warning.
- TLS or a compression that nobody asked for is not accepted.
- A refusal that only the operator can end names the option of the file, its value, nsqd's option and the remedy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from nsqdigest.base.errors import NsqdMismatch, NsqdRefused, ProtocolError
from nsqdigest.nsq.held_frames import HeldFrames

if TYPE_CHECKING:
    from nsqdigest.config import Secret
    from nsqdigest.config.tls_files import TlsClient

Compression = Literal["none", "snappy", "deflate"]

OUTPUT_BUFFER_BYTES = 64 * 1024
OUTPUT_BUFFER_TIMEOUT_MS = 25
"""So long nsqd may hold messages back on a quiet topic. The smallest value that nsqd allows by default; `window` gets
them sooner."""
DEFLATE_LEVEL = 6
"""nsqd's own default, and by default the highest that it allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The part of the file that concerns a connection, be it for consuming or for publishing."""

    heartbeat_interval_ms: int
    msg_timeout_ms: int = 0
    """0: nsqd's own."""
    tls: TlsClient | None = None
    """None: in the clear."""
    compression: Compression = "none"
    auth_secret: Secret | None = None
    held_frames: HeldFrames[Any] = field(default_factory=HeldFrames, repr=False, compare=False)
    """Shared by all connections that are made with these options."""


_Count = Annotated[int, msgspec.Meta(ge=1)]


class Negotiated(msgspec.Struct, frozen=True, kw_only=True):
    """nsqd's answer to IDENTIFY. A field that an nsqd leaves out has nsqd's own default."""

    version: str = ""
    max_rdy_count: _Count = 2500
    msg_timeout_ms: _Count = msgspec.field(name="msg_timeout", default=60_000)
    output_buffer_timeout_ms: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(
        name="output_buffer_timeout", default=250
    )
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: Annotated[int, msgspec.Meta(ge=-1, le=9)] = DEFLATE_LEVEL
    auth_required: bool = False

    @property
    def compression(self) -> Compression:
        return "snappy" if self.snappy else "deflate" if self.deflate else "none"


def identity(options: ConnectionOptions, hostname: str, user_agent: str) -> dict[str, Any]:
    """The body of IDENTIFY."""
    facts: dict[str, Any] = {
        "client_id": hostname.partition(".")[0],
        "hostname": hostname,
        "user_agent": user_agent,
        "feature_negotiation": True,
        "heartbeat_interval": options.heartbeat_interval_ms,
        "output_buffer_size": OUTPUT_BUFFER_BYTES,
        "output_buffer_timeout": OUTPUT_BUFFER_TIMEOUT_MS,
        "tls_v1": options.tls is not None,
        "snappy": options.compression == "snappy",
        "deflate": options.compression == "deflate",
    }
    if options.compression == "deflate":
        facts["deflate_level"] = DEFLATE_LEVEL
    if options.msg_timeout_ms:
        facts["msg_timeout"] = options.msg_timeout_ms
    return facts


def parse(payload: bytes, where: str) -> Negotiated:
    """`where`: which nsqd, for the message."""
    try:
        return msgspec.json.decode(payload, type=Negotiated)
    except ValueError as error:
        raise ProtocolError(f"{where} answered IDENTIFY with something else: is it an nsqd? ({error})") from None


def check(options: ConnectionOptions, answer: Negotiated, where: str) -> None:
    """Raises where the connection cannot go on with this answer."""
    unasked = [
        name
        for name, asked in (
            ("tls_v1", options.tls is not None),
            ("snappy", options.compression == "snappy"),
            ("deflate", options.compression == "deflate"),
        )
        if getattr(answer, name) and not asked
    ]
    if unasked:
        raise ProtocolError(f"{where} begins {' and '.join(unasked)}, which nobody asked for")
    if options.tls is not None and not answer.tls_v1:
        raise NsqdMismatch(
            f"{where} does not offer TLS, which [nsq.tls] asks for; start nsqd with --tls-cert and --tls-key, or take "
            "[nsq.tls] out of the file to go on in the clear"
        )
    if answer.auth_required and options.auth_secret is None:
        raise NsqdMismatch(
            f"{where} requires AUTH, and nsq.auth_secret is empty; write the secret that its auth server knows, "
            'such as auth_secret = "env:NSQ_SECRET" under [nsq]'
        )


_OTHER_PROTOCOLS = {
    b"HTTP": "it speaks HTTP; write nsqd's TCP port, usually 4150, not its HTTP port, usually 4151",
    b"-ERR": "it speaks Redis' protocol; write the TCP port of an nsqd, usually 4150",
    b"-NOA": "it speaks Redis' protocol; write the TCP port of an nsqd, usually 4150",
    b"-DEN": "it speaks Redis' protocol; write the TCP port of an nsqd, usually 4150",
}


def spoken_instead(beginning: bytes) -> str:
    """The protocol that the first four bytes of an answer belong to, with the remedy; "" where it may be nsqd's."""
    return _OTHER_PROTOCOLS.get(beginning, "")


# -- what nsqd refuses

_INVALID = re.compile(r"IDENTIFY ([a-z ]+) \(-?\d+\) is invalid")

_UNAUTHORIZED = "nsq.auth_secret has no permission for this: grant it at nsqd's auth server (--auth-http-address)"
_REMEDIES = {
    "E_AUTH_FIRST": 'nsqd requires AUTH: write auth_secret = "env:NSQ_SECRET" or so under [nsq]',
    "E_AUTH_FAILED": (
        "nsqd's auth server (--auth-http-address) refused nsq.auth_secret, or did not answer: correct the secret, or "
        "read in nsqd's log why"
    ),
    "E_AUTH_ERROR": "read in nsqd's log what its auth server (--auth-http-address) answered",
    "E_UNAUTHORIZED": _UNAUTHORIZED,
}


def _refused_option(payload: bytes) -> str:
    """The value of IDENTIFY that nsqd refused, by nsqd's name ("msg timeout"); "" where it refused something else."""
    found = _INVALID.search(payload.decode("utf-8", "replace"))
    return found[1] if found else ""


def refusal(payload: bytes, options: ConnectionOptions) -> NsqdRefused:
    """An error frame as an exception, with a remedy where only the operator can help."""
    code, _, detail = payload.decode("utf-8", "replace").partition(" ")
    remedy = _REMEDIES.get(code, "")
    if detail.endswith("(TLS required)"):
        remedy = "nsqd takes clients only over TLS (--tls-required): write [nsq.tls] in the file"
    elif option := _refused_option(payload):
        remedy = _remedy_for(option, options)
    return NsqdRefused(code, detail, remedy)


def _remedy_for(option: str, options: ConnectionOptions) -> str:
    if option == "msg timeout":
        return (
            f'nsq.msg_timeout asks for "{_duration(options.msg_timeout_ms)}", more than nsqd\'s --max-msg-timeout: '
            "write a shorter one, or raise that"
        )
    if option == "heartbeat interval":
        return (
            f'nsq.heartbeat_interval asks for "{_duration(options.heartbeat_interval_ms)}", more than nsqd\'s '
            "--max-heartbeat-interval: write a shorter one, or raise that"
        )
    if option == "output buffer size":
        return f"nsqdigest needs {OUTPUT_BUFFER_BYTES} bytes: raise nsqd's --max-output-buffer-size to that"
    if option == "output buffer timeout":
        return f"nsqdigest needs {OUTPUT_BUFFER_TIMEOUT_MS} ms: lower nsqd's --min-output-buffer-timeout to that"
    return ""


def _duration(value_ms: int) -> str:
    """As the file writes it."""
    return f"{value_ms}ms" if value_ms % 1000 else f"{value_ms // 1000}s"
