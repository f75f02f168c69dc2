"""[nsq.tls], compression and auth_secret: what loads, what is refused, and that nothing secret shows."""

from __future__ import annotations

import ssl
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from nsqdigest.config import ConfigError, Nsq, Secret, Tls, load
from nsqdigest.config.example import text as example_text
from nsqdigest.config.options import TLS
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.nsq.connection import options_of
from support.certificates import Certificates, Pair

pytestmark = pytest.mark.unit

FILE = """\
[nsq]
nsqd_tcp_addresses = ["{address}"]
{nsq}
[sinks.out]
type = "log"
[[routes]]
topic = "events"
timeline = "{{user}}"
sink = "out"
{tables}
"""
TABLE_LINE = 10


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def folder(tmp_path: Path, certificates: Certificates) -> Path:
    """The folder of the configuration, with some files in it."""
    for path in (certificates.ca_file, *pair(certificates.client), *pair(certificates.server)):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def pair(of: Pair) -> tuple[Path, Path]:
    return of.cert_file, of.key_file


class Read:
    """One load of a file with these lines."""

    def __init__(
        self, folder: Path, nsq: str = "", tables: str = "", address: str = "127.0.0.1:4150", **environ: str
    ) -> None:
        self.path = folder / "nsqdigest.toml"
        self.path.write_text(FILE.format(nsq=nsq, tables=tables, address=address), encoding="utf-8")
        self._environ: Mapping[str, str] = environ

    @property
    def nsq(self) -> Nsq:
        return load(self.path, self._environ, KINDS).nsq

    @property
    def warnings(self) -> list[str]:
        return [self._short(warning) for warning in load(self.path, self._environ, KINDS).warnings]

    @property
    def problems(self) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(self.path, self._environ, KINDS)
        return [self._short(problem) for problem in caught.value.problems]

    def _short(self, said: str) -> str:
        return said.replace(f"{self.path}:", "").replace(f"{self.path.parent}/", "")


# -- TLS


def test_without_the_table_there_is_no_tls(folder: Path) -> None:
    assert Read(folder).nsq.tls is None
    assert options_of(Read(folder).nsq).tls is None


def test_the_table_alone_asks_for_tls(folder: Path) -> None:
    nsq = Read(folder, tables="[nsq.tls]").nsq
    assert nsq.tls == Tls(ca_file="", cert_file="", key_file="", insecure=False)
    client = options_of(nsq).tls
    assert client is not None
    assert (client.context.verify_mode, client.context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (client.context.minimum_version, client.has_certificate) == (ssl.TLSVersion.TLSv1_2, False)


def test_a_variable_asks_for_it_as_well(folder: Path) -> None:
    nsq = Read(folder, NSQDIGEST__NSQ__TLS__CA_FILE="ca.pem").nsq
    assert nsq.tls is not None
    assert nsq.tls.ca_file == str(folder / "ca.pem")


def test_paths_start_at_the_folder_of_the_file(folder: Path) -> None:
    lines = '[nsq.tls]\nca_file = "ca.pem"\ncert_file = "client.pem"\nkey_file = "client.key"'
    nsq = Read(folder, tables=lines).nsq
    assert nsq.tls == Tls(
        ca_file=str(folder / "ca.pem"),
        cert_file=str(folder / "client.pem"),
        key_file=str(folder / "client.key"),
        insecure=False,
    )
    client = options_of(nsq).tls
    assert client is not None
    assert client.has_certificate


def test_what_the_file_names_is_trusted_and_nothing_else(folder: Path) -> None:
    client = options_of(Read(folder, tables='[nsq.tls]\nca_file = "ca.pem"').nsq).tls
    assert client is not None
    assert len(client.context.get_ca_certs()) == 1


def test_a_key_may_stand_in_the_file_of_its_certificate(folder: Path) -> None:
    both = (folder / "client.key").read_bytes() + (folder / "client.pem").read_bytes()
    (folder / "both.pem").write_bytes(both)
    client = options_of(Read(folder, tables='[nsq.tls]\ncert_file = "both.pem"').nsq).tls
    assert client is not None
    assert client.has_certificate


def test_insecure_checks_nothing_and_is_warned_about_at_each_start(folder: Path) -> None:
    read = Read(folder, tables="[nsq.tls]\ninsecure = true")
    client = options_of(read.nsq).tls
    assert client is not None
    assert (client.context.verify_mode, client.context.check_hostname) == (ssl.CERT_NONE, False)
    assert read.warnings == [
        f"{TABLE_LINE + 1}: nsq.tls.insecure: neither the certificate nor the host name is checked, so any "
        "server can pose as nsqd; name nsqd's authority in ca_file instead"
    ]


AWAY = "make it; a relative path starts at the folder of the configuration"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('ca_file = "none.pem"', f"ca_file: none.pem is not there; {AWAY}"),
        ('ca_file = "."', "ca_file: {folder} is a folder; name a file in it"),
        ('ca_file = "empty"', "ca_file: empty holds no certificates; name a file of them in PEM form"),
        ('ca_file = "client.key"', "ca_file: client.key holds no certificates; name a file of them in PEM form"),
        ('ca_file = "binary"', "ca_file: binary holds no certificates; name a file of them in PEM form"),
        ('ca_file = "broken"', "ca_file: broken holds no certificates; name a file of them in PEM form"),
        ('cert_file = "none.pem"', f"cert_file: none.pem is not there; {AWAY}"),
        ('cert_file = "client.pem"\nkey_file = "none.key"', f"key_file: none.key is not there; {AWAY}"),
        ('key_file = "client.key"', "key_file: is the key of no certificate; write cert_file as well"),
        ('cert_file = "client.pem"', "cert_file: client.pem holds no key; name both, in PEM form"),
        (
            'cert_file = "client.pem"\nkey_file = "server.key"',
            "key_file: server.key is not the key of client.pem; name the two that belong together",
        ),
        (
            'cert_file = "client.key"\nkey_file = "client.pem"',
            "key_file: client.key and client.pem are not a certificate and its key; name both, in PEM form",
        ),
        (
            'cert_file = "client.pem"\nkey_file = "locked.key"',
            "key_file: locked.key has a passphrase, and there is nobody to ask for it; "
            "write it without one: openssl pkey -in OLD -out NEW",
        ),
        ("ca_file = 1", 'ca_file: 1 is not text; write "1"'),
        ('ca_file = "a\\u0000b"', 'ca_file: "a\\u0000b" is not a file\'s name; write one'),
        ('insecure = "yes"', 'insecure: "yes" is neither true nor false; write true'),
        ('cafile = ""', 'cafile: unknown key; did you mean "ca_file"?'),
    ],
)
def test_what_can_not_be_used_is_a_problem_with_its_line(folder: Path, lines: str, said: str) -> None:
    (folder / "empty").write_bytes(b"")
    (folder / "binary").write_bytes(b"\xff\xfe\0")
    (folder / "broken").write_text("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", encoding="ascii")
    (folder / "locked.key").write_text(LOCKED_KEY, encoding="ascii")
    line = TABLE_LINE + (2 if "\nkey_file" in lines else 1)
    expected = said.replace("{folder}", str(folder))
    assert Read(folder, tables=f"[nsq.tls]\n{lines}").problems == [f"{line}: nsq.tls.{expected}"]


def test_each_file_that_is_not_there_is_named(folder: Path) -> None:
    lines = '[nsq.tls]\nca_file = "a"\ncert_file = "b"\nkey_file = "c"'
    assert Read(folder, tables=lines).problems == [
        f"{TABLE_LINE + number}: nsq.tls.{key}: {name} is not there; {AWAY}"
        for number, (key, name) in enumerate([("ca_file", "a"), ("cert_file", "b"), ("key_file", "c")], start=1)
    ]


LOCKED_KEY = """\
-----BEGIN EC PRIVATE KEY-----
Proc-Type: 4,ENCRYPTED
DEK-Info: AES-128-CBC,0123456789ABCDEF0123456789ABCDEF

Oq0mZkyLcWmyfzSP2J7kZnVJTxXb1xEm7Jp2xKXz0Jw=
-----END EC PRIVATE KEY-----
"""


def test_a_file_that_may_not_be_read_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    # As root, who runs the tests in a container, everything may be read.
    monkeypatch.setattr("os.open", refuse)
    said = Read(folder, tables='[nsq.tls]\nca_file = "ca.pem"').problems
    assert said == [f"{TABLE_LINE + 1}: nsq.tls.ca_file: ca.pem cannot be read: Permission denied; "
                    "make it readable for this user"]  # fmt: skip


def test_a_value_in_place_of_the_table_is_a_problem(folder: Path) -> None:
    assert Read(folder, nsq="tls = true").problems == ["3: nsq.tls: is not a table; write [nsq.tls]"]


def test_the_example_shows_the_table_and_does_not_turn_it_on() -> None:
    lines = example_text(KINDS).splitlines()
    begins = lines.index("# [nsq.tls]")
    shown = [line.removeprefix("# ") for line in lines[begins : begins + 1 + len(TLS.options)]]
    table = tomllib.loads("\n".join(shown))["nsq"]["tls"]
    assert table == {option.key: option.default for option in TLS.options}
    assert "tls" not in tomllib.loads(example_text(KINDS))["nsq"]


# -- TLS to Redis


def test_the_files_of_redis_are_read_and_belong_to_a_url_with_tls(folder: Path) -> None:
    def problems(lines: str) -> list[str]:
        return [each.partition(": ")[2] for each in Read(folder, tables=f"[redis]\n{lines}").problems]

    tls = 'url = "rediss://h"'
    assert problems(f'{tls}\nca_file = "none.pem"') == [
        "redis.ca_file: none.pem is not there; make it; a relative path starts at the folder of the configuration"
    ]
    assert problems(f'{tls}\nkey_file = "client.key"') == [
        "redis.key_file: is the key of no certificate; write cert_file as well"
    ]
    for line in ('ca_file = "ca.pem"', 'cert_file = "client.pem"', "insecure = true"):
        option = line.partition(" ")[0]
        for url in ("redis://h", "unix:///h", "redis+sentinel://h/main", "redis+cluster://h"):
            assert problems(f'url = "{url}"\n{line}') == [
                f"redis.{option}: has no effect: redis.url is without TLS; write rediss:// in url, or leave it out"
            ]


def test_redis_without_verification_gets_a_warning(folder: Path) -> None:
    config = load(Read(folder, tables='[redis]\nurl = "rediss://h"\ninsecure = true').path, {}, KINDS)
    (warning,) = config.warnings
    assert (warning.path, warning.remedy) == ("redis.insecure", "name the authority of Redis in ca_file instead")
    assert "any server can pose as Redis" in warning
    assert config.redis.tls is not None
    assert config.redis.tls.insecure


# -- compression


@pytest.mark.parametrize("word", ["none", "snappy", "deflate"])
def test_compression_is_one_of_three(folder: Path, word: str) -> None:
    nsq = Read(folder, nsq=f'compression = "{word}"').nsq
    assert (nsq.compression, options_of(nsq).compression) == (word, word)


def test_another_compression_is_refused(folder: Path) -> None:
    assert Read(folder, nsq='compression = "snapy"').problems == [
        '3: nsq.compression: "snapy" is not "none", "snappy" or "deflate"; write "snappy"'
    ]


def test_snappy_without_its_package_is_refused_with_the_command_that_helps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    assert Read(folder, nsq='compression = "snappy"').problems == [
        '3: nsq.compression: "snappy" needs a package that is not installed; run: pip install "nsqdigest[snappy]", '
        'or write compression = "deflate"'
    ]
    assert Read(folder, nsq='compression = "deflate"').nsq.compression == "deflate"


# -- AUTH


def test_a_secret_of_the_environment_is_masked(folder: Path) -> None:
    nsq = Read(folder, nsq='auth_secret = "env:S"', S="hunter2").nsq
    assert nsq.auth_secret == Secret("hunter2")
    assert "hunter2" not in f"{nsq!r} {options_of(nsq)!r}"


def test_no_secret_is_none(folder: Path) -> None:
    assert Read(folder).nsq.auth_secret is None


def test_a_secret_of_another_type_is_not_repeated(folder: Path) -> None:
    assert Read(folder, nsq="auth_secret = 4711").problems == [
        "3: nsq.auth_secret: the value is not text; write it in quotes"
    ]


def test_a_secret_in_the_clear_for_whoever_a_nsqlookupd_names_is_warned_about(folder: Path) -> None:
    nsq = 'auth_secret = "s"\nlookupd_http_addresses = ["127.0.0.1:4161"]'
    assert Read(folder, nsq=nsq).warnings == [
        "3: nsq.auth_secret: goes in the clear to every nsqd that a nsqlookupd names; write [nsq.tls] as well"
    ]
    assert Read(folder, nsq=nsq, tables="[nsq.tls]").warnings == []


def test_allowed_nsqds_without_a_nsqlookupd_have_no_use(folder: Path) -> None:
    nsq = 'allow_nsqds = ["10.0.0.0/8", "*.nsq.internal"]'
    assert Read(folder, nsq=nsq).warnings == [
        "3: nsq.allow_nsqds: has no use: the file names no nsqlookupd; leave it out"
    ]
    both = Read(folder, nsq=f'{nsq}\nlookupd_http_addresses = ["127.0.0.1:4161"]')
    assert both.warnings == []
    assert both.nsq.allow_nsqds == ("10.0.0.0/8", "*.nsq.internal")


def test_an_allowed_nsqd_is_a_host_or_a_network(folder: Path) -> None:
    nsq = 'allow_nsqds = ["10.0.0.1:4150"]\nlookupd_http_addresses = ["127.0.0.1:4161"]'
    assert Read(folder, nsq=nsq).problems == [
        '3: nsq.allow_nsqds[0]: "10.0.0.1:4150" is neither a host nor a network; '
        'write one like "hooks.internal", "*.svc.internal" or "10.0.0.0/8"'
    ]


def test_a_secret_in_the_clear_over_the_network_is_warned_about(folder: Path) -> None:
    far = Read(folder, nsq='auth_secret = "s"', address="10.0.0.1:4150")
    assert far.warnings == ["3: nsq.auth_secret: goes to 10.0.0.1:4150 in the clear; write [nsq.tls] as well"]
    assert Read(folder, nsq='auth_secret = "s"').warnings == []
    assert Read(folder, nsq='auth_secret = "s"', tables="[nsq.tls]", address="10.0.0.1:4150").warnings == []
