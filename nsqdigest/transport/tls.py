"""TLS to nsqd: the context that all connections share, and what a failed handshake means to an operator.

Always so:
- The chain and the host name are checked, TLS 1.2 is the oldest that is spoken; `insecure` alone, and by that word,
  gives up the checks.
- Every failure is told with its cause and the way out.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from nsqdigest.errors import EXIT_CONFIG, NsqdigestError, NsqdMismatch

if TYPE_CHECKING:
    from nsqdigest.config import Tls


@dataclass(frozen=True, slots=True)
class TlsClient:
    context: ssl.SSLContext
    has_certificate: bool
    """Whether we show nsqd one of ours."""


class TlsFileProblem(NsqdigestError):
    """One of the files of [nsq.tls] cannot be used. `key`: which option names it."""

    exit_code = EXIT_CONFIG

    def __init__(self, key: str, what: str, way_out: str) -> None:
        super().__init__(f"nsq.tls.{key}: {what}; {way_out}")
        self.key = key
        self.what = what
        self.way_out = way_out


class _Encrypted(Exception):
    pass


def client(settings: Tls) -> TlsClient:
    """Reads the files. Raises TlsFileProblem."""
    context = _trusting(settings.ca_file) if settings.ca_file else ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.cert_file:
        if unreadable := unreadable_files(settings):
            raise unreadable[0]
        _show(context, settings.cert_file, settings.key_file)
    return TlsClient(context, bool(settings.cert_file))


def unreadable_files(settings: Tls) -> list[TlsFileProblem]:
    problems = []
    for key in ("ca_file", "cert_file", "key_file"):
        path = getattr(settings, key)
        try:
            if path:
                open(path, "rb").close()
        except OSError as error:
            problems.append(_unreadable(key, path, error))
    return problems


def _trusting(path: str) -> ssl.SSLContext:
    """What the file holds, and nothing else: otherwise a certificate of any public authority would pass, too."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if not text:
            raise ValueError  # no text at all would mean the system's authorities
        return ssl.create_default_context(cadata=text)
    except (ssl.SSLError, ValueError):
        raise TlsFileProblem("ca_file", f"{path} holds no certificates", "name a file of them in PEM form") from None
    except OSError as error:
        raise _unreadable("ca_file", path, error) from None


def _show(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    key = "key_file" if key_file else "cert_file"
    try:
        context.load_cert_chain(cert_file, key_file or None, password=_refuse_to_ask)
    except _Encrypted:
        what = f"{key_file or cert_file} has a passphrase, and there is nobody to ask for it"
        raise TlsFileProblem(key, what, "write it without one: openssl pkey -in OLD -out NEW") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            what = f"{key_file or cert_file} is not the key of {cert_file}"
            raise TlsFileProblem(key, what, "name the two that belong together") from None
        what = f"{cert_file}" + (f" and {key_file} are not a certificate and its key" if key_file else " holds no key")
        raise TlsFileProblem(key, what, "name both, in PEM form") from None


def _refuse_to_ask() -> NoReturn:
    raise _Encrypted


def _unreadable(key: str, path: str, error: OSError) -> TlsFileProblem:
    if isinstance(error, FileNotFoundError):
        way_out = "a relative path starts at the folder of the configuration"
        return TlsFileProblem(key, f"{path} is not there", way_out)
    return TlsFileProblem(key, f"{path} cannot be read: {error.strerror}", "make it readable for this user")


# -- what a failed handshake means

_EXPIRED, _NOT_YET, _SELF_SIGNED, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 18, 62, 64
_NO_AUTHORITY = (19, 20, 21, 2)
"""OpenSSL's X509_V_ERR_…"""


def explain(error: ssl.SSLError, options: TlsClient, host: str, where: str) -> NsqdMismatch:
    if isinstance(error, ssl.SSLCertVerificationError):
        cause, way_out = _of_its_certificate(error, host)
    else:
        cause, way_out = _of_the_handshake(error, options)
    return NsqdMismatch(f"{where}: TLS failed: {cause}; {way_out}")


def _of_its_certificate(error: ssl.SSLCertVerificationError, host: str) -> tuple[str, str]:
    code, said = error.verify_code, error.verify_message
    if code in (_OTHER_NAME, _OTHER_ADDRESS):
        return (
            f"its certificate is valid, but not for {host}",
            "connect by a name that stands in it, or give nsqd one for this name (subjectAltName)",
        )
    if code == _EXPIRED:
        return "its certificate has expired", "renew the one of nsqd's --tls-cert, or set this machine's clock"
    if code == _NOT_YET:
        return "its certificate is not valid yet", "set the clocks of both machines, or wait"
    if code == _SELF_SIGNED:
        return "its certificate is signed by itself", "name that very certificate in nsq.tls.ca_file, if it is nsqd's"
    if code in _NO_AUTHORITY:
        return (
            f"its certificate is of an authority that is not trusted here ({said})",
            "name that authority in nsq.tls.ca_file",
        )
    return f"its certificate does not pass ({said})", "give nsqd another (--tls-cert), or see nsq.tls.ca_file"


_REFUSED = ("BAD_CERTIFICATE", "UNKNOWN_CA", "CERTIFICATE_UNKNOWN", "UNSUPPORTED_CERTIFICATE", "CERTIFICATE_REVOKED")


def _of_the_handshake(error: ssl.SSLError, options: TlsClient) -> tuple[str, str]:
    reason = getattr(error, "reason", None) or str(error)
    alert = reason.partition("ALERT_")[2]
    if alert == "CERTIFICATE_EXPIRED":
        return "nsqd says that our certificate has expired", "renew the one of nsq.tls.cert_file"
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
        return "what answered does not speak TLS", "look at what listens there"
    return reason.lower().replace("_", " "), "nsqd's log may say more"
