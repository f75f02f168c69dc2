"""A failed TLS handshake with nsqd, explained to an operator: the cause and the remedy (pure but for ssl's classes)."""

from __future__ import annotations

import ssl

from nsqdigest.base.errors import NsqdMismatch
from nsqdigest.config.tls_files import TlsClient

_EXPIRED, _NOT_YET, _SELF_SIGNED, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 18, 62, 64
_NO_AUTHORITY = (19, 20, 21, 2)
"""OpenSSL's X509_V_ERR_…"""


def explain(error: ssl.SSLError, options: TlsClient, host: str, where: str) -> NsqdMismatch:
    if isinstance(error, ssl.SSLCertVerificationError):
        cause, remedy = _of_its_certificate(error, host)
    else:
        cause, remedy = _of_the_handshake(error, options)
    return NsqdMismatch(f"{where}: TLS failed: {cause}; {remedy}")


def _of_its_certificate(error: ssl.SSLCertVerificationError, host: str) -> tuple[str, str]:
    code, openssl_text = error.verify_code, error.verify_message
    if code in (_OTHER_NAME, _OTHER_ADDRESS):
        return (
            f"its certificate is valid, but not for {host}",
            "connect by a name that the certificate contains, or give nsqd one for this name (subjectAltName)",
        )
    if code == _EXPIRED:
        return "its certificate has expired", "renew the one of nsqd's --tls-cert, or set this machine's clock"
    if code == _NOT_YET:
        return "its certificate is not valid yet", "set the clocks of both machines, or wait"
    if code == _SELF_SIGNED:
        return "its certificate is signed by itself", "name that very certificate in nsq.tls.ca_file, if it is nsqd's"
    if code in _NO_AUTHORITY:
        return (
            f"its certificate is signed by an authority that is not trusted here ({openssl_text})",
            "name that authority in nsq.tls.ca_file",
        )
    return f"its certificate does not pass ({openssl_text})", "give nsqd another (--tls-cert), or see nsq.tls.ca_file"


_REFUSED = ("BAD_CERTIFICATE", "UNKNOWN_CA", "CERTIFICATE_UNKNOWN", "UNSUPPORTED_CERTIFICATE", "CERTIFICATE_REVOKED")


def _of_the_handshake(error: ssl.SSLError, options: TlsClient) -> tuple[str, str]:
    reason = getattr(error, "reason", None) or str(error)
    alert = reason.partition("ALERT_")[2]
    if alert == "CERTIFICATE_EXPIRED":
        return "nsqd answers that our certificate has expired", "renew the one of nsq.tls.cert_file"
    if alert == "CERTIFICATE_REQUIRED" or (alert in (*_REFUSED, "HANDSHAKE_FAILURE") and not options.has_certificate):
        return (
            "nsqd asks for a client certificate, and there is none",
            "write cert_file and key_file under [nsq.tls]",
        )
    if alert in _REFUSED:
        return (
            "nsqd does not accept our client certificate",
            "name one in nsq.tls.cert_file that an authority of nsqd's --tls-root-ca-file has signed",
        )
    if alert == "PROTOCOL_VERSION" or "UNSUPPORTED_PROTOCOL" in reason or "NO_PROTOCOLS" in reason:
        return "nsqd and this side have no version of TLS in common", "let nsqd speak TLS 1.2 or 1.3"
    if reason in ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"):
        return "the server at this address does not speak TLS", "check the address, and whether nsqd has --tls-cert"
    return reason.lower().replace("_", " "), "read nsqd's log for more"
