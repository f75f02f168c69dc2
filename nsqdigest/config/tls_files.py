"""The files of TLS that a table names, read into the context that its connections share.

Invariants:
- Every connection checks the chain and the host name (`base.tls.client_context`); only `insecure` turns that off.
- Each file that cannot be used is a problem of its option, with the remedy.
"""

from __future__ import annotations

import contextlib
import hashlib
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from nsqdigest.base import files
from nsqdigest.base.errors import EXIT_CONFIG, NsqdigestError
from nsqdigest.base.files import FileProblem
from nsqdigest.base.tls import client_context
from nsqdigest.config.model import Tls


@dataclass(frozen=True, slots=True)
class TlsClient:
    context: ssl.SSLContext
    has_certificate: bool
    """Whether the client has a certificate of its own to show."""


class TlsFileProblem(NsqdigestError):
    """A file cannot be used. `key`: the option that names it."""

    exit_code = EXIT_CONFIG

    def __init__(self, key: str, what: str, remedy: str, table: str = "") -> None:
        super().__init__(f"{table}.{key}: {what}; {remedy}")
        self.key = key
        self.what = what
        self.remedy = remedy


class _Encrypted(Exception):
    pass


def client(settings: Tls, table: str = "nsq.tls") -> TlsClient:
    """Reads the files. `table`: the one of `settings`, for messages. Raises TlsFileProblem."""
    try:
        return _client(settings)
    except TlsFileProblem as problem:
        raise TlsFileProblem(problem.key, problem.what, problem.remedy, table) from None


def _client(settings: Tls) -> TlsClient:
    context = _trusting(settings.ca_file) if settings.ca_file else client_context()
    if settings.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.cert_file:
        if unreadable := unreadable_files(settings):
            raise unreadable[0]
        _show(context, settings.cert_file, settings.key_file)
    return TlsClient(context, bool(settings.cert_file))


def fingerprint(settings: Tls | None) -> str:
    """Another one where the files have other contents. "": nothing of TLS is configured."""
    return "" if settings is None else contents((settings.ca_file, settings.cert_file, settings.key_file))


def contents(paths: Iterable[str]) -> str:
    """A fingerprint of these files; "" is none."""
    digest = hashlib.sha256()
    for path in filter(None, paths):
        with contextlib.suppress(FileProblem):  # `client` reports what cannot be read
            digest.update(hashlib.sha256(files.read(path).data).digest())
    return digest.hexdigest()


def unreadable_files(settings: Tls) -> list[TlsFileProblem]:
    problems = []
    for key in ("ca_file", "cert_file", "key_file"):
        path = getattr(settings, key)
        try:
            if path:
                files.read(path)
        except FileProblem as problem:
            problems.append(_unreadable(key, path, problem))
    return problems


def _trusting(path: str) -> ssl.SSLContext:
    """Trusts the authorities in the file and no other: the system's would let any public certificate pass, too."""
    try:
        return client_context(files.read(path).data.decode("utf-8"))
    except (ssl.SSLError, ValueError):
        raise TlsFileProblem("ca_file", f"{path} holds no certificates", "name a file of them in PEM form") from None
    except FileProblem as problem:
        raise _unreadable("ca_file", path, problem) from None


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


def _unreadable(key: str, path: str, problem: FileProblem) -> TlsFileProblem:
    return TlsFileProblem(key, f"{path} {problem.what}", problem.remedy)
