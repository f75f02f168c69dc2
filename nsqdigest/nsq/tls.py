"""A failed TLS handshake with nsqd, explained to an operator: the cause and the remedy (pure but for ssl's classes)."""

from __future__ import annotations

import ssl

from nsqdigest.base.errors import NsqdMismatch
from nsqdigest.base.tls import TlsFault, failure
from nsqdigest.config.tls_files import TlsClient

_REMEDY = {
    TlsFault.OTHER_NAME: "connect by a name that the certificate contains, or give nsqd one for this name "
    "(subjectAltName)",
    TlsFault.EXPIRED: "renew the one of nsqd's --tls-cert, or set this machine's clock",
    TlsFault.NOT_YET: "set the clocks of both machines, or wait",
    TlsFault.SELF_SIGNED: "name that very certificate in nsq.tls.ca_file, if it is nsqd's",
    TlsFault.NO_AUTHORITY: "name that authority in nsq.tls.ca_file",
    TlsFault.UNFIT: "give nsqd another (--tls-cert), or see nsq.tls.ca_file",
    TlsFault.OURS_EXPIRED: "renew the one of nsq.tls.cert_file",
    TlsFault.OURS_MISSING: "write cert_file and key_file under [nsq.tls]",
    TlsFault.OURS_REFUSED: "name one in nsq.tls.cert_file that an authority of nsqd's --tls-root-ca-file has signed",
    TlsFault.VERSION: "let nsqd speak TLS 1.2 or 1.3",
    TlsFault.NO_TLS: "check the address, and whether nsqd has --tls-cert",
    TlsFault.OTHER: "read nsqd's log for more",
}


def explain(error: ssl.SSLError, options: TlsClient, host: str, where: str) -> NsqdMismatch:
    fault, cause = failure(error, host, "nsqd", has_certificate=options.has_certificate)
    return NsqdMismatch(f"{where}: TLS failed: {cause}; {_REMEDY[fault]}")
