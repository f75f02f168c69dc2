"""What a failed TLS handshake means to an operator, also where no real nsqd is at hand that fails like that."""

from __future__ import annotations

import ssl

import pytest

from nsqdigest.config.tls_files import TlsClient
from nsqdigest.nsq.tls import explain

pytestmark = pytest.mark.unit

WHERE = "nsqd at nsqd-1:4150"
CONTEXT = ssl.create_default_context()
BARE, SHOWING = TlsClient(CONTEXT, has_certificate=False), TlsClient(CONTEXT, has_certificate=True)


def failed(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] it failed (_ssl.c:1)")
    error.reason = reason
    return error


def unverified(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return error


@pytest.mark.parametrize(
    ("reason", "client", "said"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", BARE, "nsqd asks for a client certificate, and there is none"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", BARE, "nsqd asks for a client certificate, and there is none"),
        ("SSL/TLS_ALERT_BAD_CERTIFICATE", BARE, "nsqd asks for a client certificate, and there is none"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", BARE, "nsqd asks for a client certificate, and there is none"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", SHOWING, "sslv3 alert handshake failure; read nsqd's log for more"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", SHOWING, "nsqd does not accept our client certificate"),
        ("TLSV1_ALERT_UNKNOWN_CA", SHOWING, "nsqd does not accept our client certificate"),
        ("SSLV3_ALERT_CERTIFICATE_UNKNOWN", SHOWING, "nsqd does not accept our client certificate"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", SHOWING, "nsqd answers that our certificate has expired; renew the one of"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", BARE, "nsqd and this side have no version of TLS in common; let nsqd speak"),
        ("UNSUPPORTED_PROTOCOL", BARE, "nsqd and this side have no version of TLS in common; let nsqd speak"),
        ("WRONG_VERSION_NUMBER", BARE, "the server at this address does not speak TLS; check the address"),
        ("SOMETHING_NEW", BARE, "something new; read nsqd's log for more"),
    ],
)
def test_each_alert_has_its_cause_and_the_remedy(reason: str, client: TlsClient, said: str) -> None:
    error = explain(failed(reason), client, "nsqd-1", WHERE)
    assert str(error).startswith(f"{WHERE}: TLS failed: {said}")
    assert error.needs_operator


def test_an_error_without_a_reason_speaks_for_itself() -> None:
    assert "it broke" in str(explain(ssl.SSLError(1, "it broke"), BARE, "nsqd-1", WHERE))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (10, "its certificate has expired; renew"),
        (9, "its certificate is not valid yet; set the clocks"),
        (18, "its certificate is signed by itself; name that very certificate in nsq.tls.ca_file"),
        (
            19,
            "its certificate is signed by an authority that is not trusted here (why); "
            "name that authority in nsq.tls.ca_file",
        ),
        (
            20,
            "its certificate is signed by an authority that is not trusted here (why); "
            "name that authority in nsq.tls.ca_file",
        ),
        (62, "its certificate is valid, but not for nsqd-1; connect by a name that the certificate contains"),
        (64, "its certificate is valid, but not for nsqd-1; connect by a name that the certificate contains"),
        (26, "its certificate does not pass (why); give nsqd another"),
    ],
)
def test_each_fault_of_its_certificate_has_its_cause_and_the_remedy(code: int, said: str) -> None:
    assert str(explain(unverified(code, "why"), BARE, "nsqd-1", WHERE)).startswith(f"{WHERE}: TLS failed: {said}")
