"""Certificates for TLS of every kind of rightness, made anew for each run and written as PEM files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from support.ports import HOST


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate, with the chain below its authority, and its key."""

    cert_file: Path
    key_file: Path


class Certificates:
    """`ca_file` vouches for everything but `strange` and `self_signed`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA(organization_name="the authority of the tests")
        stranger = trustme.CA(organization_name="some other authority")
        self.ca_file = self._write("ca.pem", self._ca.cert_pem)
        self.other_ca_file = self._write("other-ca.pem", stranger.cert_pem)
        self.server = self._pair("server", self._ca.issue_cert(HOST, "::1", "localhost"))
        self.client = self._pair("client", self._ca.issue_cert("client.example", common_name="nsqdigest"))
        self.wrong_host = self._pair("wrong-host", self._ca.issue_cert("nsqd.example"))
        self.wrong_purpose = self._issued("wrong-purpose", ExtendedKeyUsageOID.CLIENT_AUTH, has_names=True)
        self.common_name_only = self._issued("common-name-only", ExtendedKeyUsageOID.SERVER_AUTH, has_names=False)
        self.strange = self._pair("strange", stranger.issue_cert(HOST))
        now = datetime.now(UTC)
        past, soon = now - timedelta(days=2), now + timedelta(days=2)
        self.expired = self._pair(
            "expired", self._ca.issue_cert(HOST, not_before=past, not_after=now - timedelta(days=1))
        )
        self.not_yet = self._pair(
            "not-yet", self._ca.issue_cert(HOST, not_before=now + timedelta(days=1), not_after=soon)
        )
        alone = trustme.CA(organization_name="nobody else")
        self.self_signed = Pair(
            self._write("self-signed.pem", alone.cert_pem), self._write("self-signed.key", alone.private_key_pem)
        )

    def _issued(self, name: str, purpose: x509.ObjectIdentifier, *, has_names: bool) -> Pair:
        """A certificate that trustme does not make: for one purpose alone, or with "localhost" as its common name."""
        ca_key = serialization.load_pem_private_key(self._ca.private_key_pem.bytes(), password=None)
        ca = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())
        assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ip_address(HOST))]
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]))
            .issuer_name(ca.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=100))
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        )
        if has_names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(ca_key, hashes.SHA256())
        pem = serialization.Encoding.PEM
        key_pem = key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
        return Pair(
            self._write(f"{name}.pem", trustme.Blob(certificate.public_bytes(pem))),
            self._write(f"{name}.key", trustme.Blob(key_pem)),
        )

    def _write(self, name: str, blob: trustme.Blob) -> Path:
        path = self._folder / name
        blob.write_to_path(path)
        path.chmod(0o600)
        return path

    def _pair(self, name: str, leaf: trustme.LeafCert) -> Pair:
        cert_file = self._folder / f"{name}.pem"
        for number, blob in enumerate(leaf.cert_chain_pems):
            blob.write_to_path(cert_file, append=number > 0)
        return Pair(cert_file, self._write(f"{name}.key", leaf.private_key_pem))
