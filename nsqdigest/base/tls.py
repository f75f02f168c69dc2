"""TLS of a client: the one way to make its context, and why a handshake failed, in plain words.

Every edge (nsqd, Redis, webhooks, mail servers) uses both, so each case reads the same everywhere. The remedy differs,
and stands with each edge.
"""

from __future__ import annotations

import ssl
from enum import StrEnum
from typing import NamedTuple


def client_context(authorities: str | None = None) -> ssl.SSLContext:
    """Return a context that checks the chain and the host name, with TLS 1.2 or newer.

    `authorities`: certificates in PEM form, to be trusted instead of the system's. Raises ssl.SSLError or ValueError if
    the text holds none.
    """
    if authorities is not None and not authorities.strip():
        raise ValueError  # the system's authorities would be trusted
    context = ssl.create_default_context(cadata=authorities)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.hostname_checks_common_name = False  # the names of a server stand in subjectAltName alone (RFC 9525)
    return context


class TlsFault(StrEnum):
    """Why a handshake failed."""

    OTHER_NAME = "other-name"
    EXPIRED = "expired"
    NOT_YET = "not-yet"
    SELF_SIGNED = "self-signed"
    NO_AUTHORITY = "no-authority"
    UNFIT = "unfit"
    """Any other fault of the server's certificate, such as its purpose."""
    OURS_EXPIRED = "ours-expired"
    OURS_MISSING = "ours-missing"
    OURS_REFUSED = "ours-refused"
    VERSION = "version"
    NO_TLS = "no-tls"
    """The server at this address does not speak TLS."""
    OTHER = "other"


class TlsFailure(NamedTuple):
    fault: TlsFault
    cause: str


_NAMES = (62, 64)
_AUTHORITIES = (2, 19, 20, 21)
_FAULT_OF_CODE = {10: TlsFault.EXPIRED, 9: TlsFault.NOT_YET, 18: TlsFault.SELF_SIGNED}
"""OpenSSL's X509_V_ERR_…"""
_CAUSE = {
    TlsFault.EXPIRED: "its certificate has expired",
    TlsFault.NOT_YET: "its certificate is not valid yet",
    TlsFault.SELF_SIGNED: "its certificate is signed by itself",
    TlsFault.NO_TLS: "the server at this address does not speak TLS",
}
_REFUSED = ("BAD_CERTIFICATE", "UNKNOWN_CA", "CERTIFICATE_UNKNOWN", "UNSUPPORTED_CERTIFICATE", "CERTIFICATE_REVOKED")
_NOT_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


def failure(error: ssl.SSLError, host: str, server: str = "it", *, has_certificate: bool = False) -> TlsFailure:
    """Explain an error of the handshake. `server`: a name for the peer in the sentence. `has_certificate`: whether this
    side has one to show."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_its_certificate(error, host)
    return _of_the_handshake(error, server, has_certificate=has_certificate)


def _of_its_certificate(error: ssl.SSLCertVerificationError, host: str) -> TlsFailure:
    code, openssl_text = error.verify_code, error.verify_message.rstrip(".")
    if code in _NAMES:
        return TlsFailure(TlsFault.OTHER_NAME, f"its certificate is valid, but not for {host}")
    if fault := _FAULT_OF_CODE.get(code):
        return TlsFailure(fault, _CAUSE[fault])
    if code in _AUTHORITIES:
        cause = f"its certificate is signed by an authority that is not trusted here ({openssl_text})"
        return TlsFailure(TlsFault.NO_AUTHORITY, cause)
    return TlsFailure(TlsFault.UNFIT, f"its certificate does not pass ({openssl_text})")


def _of_the_handshake(error: ssl.SSLError, server: str, *, has_certificate: bool) -> TlsFailure:
    reason = getattr(error, "reason", None) or str(error)
    alert = reason.partition("ALERT_")[2]
    if alert == "CERTIFICATE_EXPIRED":
        return TlsFailure(TlsFault.OURS_EXPIRED, f"{server} answers that our certificate has expired")
    if alert == "CERTIFICATE_REQUIRED" or (alert in (*_REFUSED, "HANDSHAKE_FAILURE") and not has_certificate):
        return TlsFailure(TlsFault.OURS_MISSING, f"{server} asks for a client certificate, and there is none")
    if alert in _REFUSED:
        return TlsFailure(TlsFault.OURS_REFUSED, f"{server} does not accept our client certificate")
    if alert == "PROTOCOL_VERSION" or "UNSUPPORTED_PROTOCOL" in reason or "NO_PROTOCOLS" in reason:
        return TlsFailure(TlsFault.VERSION, f"{server} and this side have no version of TLS in common")
    if reason in _NOT_TLS:
        return TlsFailure(TlsFault.NO_TLS, _CAUSE[TlsFault.NO_TLS])
    return TlsFailure(TlsFault.OTHER, reason.lower().replace("_", " "))


def error_within(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error that caused this one, if there is one."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None
