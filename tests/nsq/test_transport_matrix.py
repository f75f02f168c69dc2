"""Every way to nsqd, on the real one: {plain, TLS 1.2, TLS 1.3, mutual TLS} x {none, snappy, deflate} x {AUTH or not}.

In each cell messages of 10 bytes to 1 MiB are published and consumed the same way, and come as they were, all of them:
4 MiB in a cell (100 to 200 messages), 64 MiB (over 4,000) with NSQDIGEST_PROVE=1. And every refusal says its cause and
the remedy.
"""

from __future__ import annotations

import itertools
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from nsq import protocol

from nsqdigest.base.errors import NsqdigestError, NsqdRefused
from nsqdigest.config import Address, Secret, Tls, tls_files
from nsqdigest.nsq.connection import ConnectionOptions, NsqConnection
from nsqdigest.nsq.frames import Message
from nsqdigest.nsq.negotiation import Compression
from nsqdigest.nsq.publisher import Publisher
from support.auth_server import EVERYTHING, AuthServer
from support.bodies import LARGEST_BYTES, mixed_bodies
from support.certificates import Certificates, Pair
from support.ports import HOST, free_port
from support.servers import Nsqd
from support.stage import PROVE
from support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.integration, pytest.mark.servers]

CELL_BYTES = (64 if PROVE else 4) << 20
BATCH_BYTES = 2 << 20
"""Of one MPUB; nsqd takes 5 MiB."""
CHANNEL = "ch"
SECRET = "correct horse"
TOPICS = (f"cell-{number}" for number in itertools.count())
LAYERS = ("plain", "TLSv1.2", "TLSv1.3", "mutual TLS")
COMPRESSIONS: tuple[Compression, ...] = ("none", "snappy", "deflate")


# -- what all tests share


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def auth_server() -> Iterator[AuthServer]:
    may_read = [{"topic": "^allowed$", "channels": [".*"], "permissions": ["subscribe"]}]
    with AuthServer({SECRET: EVERYTHING, "nothing": [], "reader": may_read}) as server:
        yield server


Start = Callable[..., Nsqd]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """One nsqd for each set of options, for the whole module."""
    started: dict[tuple[str, ...], Nsqd] = {}
    with ExitStack() as ending:

        def nsqd(*options: str, host: str = HOST) -> Nsqd:
            known = (host, *options)
            if known not in started:
                started[known] = ending.enter_context(Nsqd(tmp_path_factory.mktemp("nsqd"), *options, host=host))
            return started[known]

        yield nsqd


def offering_tls(pair: Pair) -> tuple[str, ...]:
    return (f"--tls-cert={pair.cert_file}", f"--tls-key={pair.key_file}")


def asking_for_certificates(certificates: Certificates) -> tuple[str, ...]:
    # tcp-https: HTTP goes on in the clear, for the tests themselves.
    return (
        f"--tls-root-ca-file={certificates.ca_file}",
        "--tls-client-auth-policy=require-verify",
        "--tls-required=tcp-https",
    )


def tls_client(certificates: Certificates, **settings: Any) -> tls_files.TlsClient:
    known = {"ca_file": str(certificates.ca_file), "cert_file": "", "key_file": "", "insecure": False}
    return tls_files.client(Tls(**{**known, **settings}))


def showing(pair: Pair) -> dict[str, str]:
    return {"cert_file": str(pair.cert_file), "key_file": str(pair.key_file)}


class Recorder:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.closed: list[NsqdigestError] = []

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
        self.messages += messages
        connection.fin(messages)

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None:
        raise error

    def on_closed(self, connection: NsqConnection, reason: NsqdigestError) -> None:
        self.closed.append(reason)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


Make = Callable[..., NsqConnection]


@pytest.fixture
async def to(recorder: Recorder) -> AsyncIterator[Make]:
    made: list[NsqConnection] = []

    def make(nsqd: Nsqd, **options: Any) -> NsqConnection:
        settings = ConnectionOptions(**{"heartbeat_interval_ms": 30_000, **options})
        made.append(NsqConnection(Address(*nsqd.tcp_address), settings, recorder))
        return made[-1]

    yield make
    for connection in made:
        connection.close("the test ends")
        await connection.hang_up()


async def subscribe(connection: NsqConnection, topic: str = "events") -> None:
    await connection.open()
    await connection.subscribe(topic, CHANNEL)


async def refused(connection: NsqConnection) -> str:
    """What the error says that keeps it from being used, whatever step it comes at."""
    with pytest.raises(NsqdigestError) as caught:
        await subscribe(connection)
    assert caught.value.needs_operator, caught.value
    assert not connection.is_open
    return str(caught.value).replace(str(connection.address), "NSQD")


# -- the matrix


def batches_of(bodies: list[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    for body in bodies:
        batch.append(body)
        if sum(map(len, batch)) > BATCH_BYTES - LARGEST_BYTES:
            yield batch
            batch = []
    if batch:
        yield batch


@pytest.mark.parametrize("auth", [False, True], ids=["", "AUTH"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("layer", LAYERS)
async def test_what_is_published_comes_byte_for_byte(
    *,
    layer: str,
    compression: Compression,
    auth: bool,
    certificates: Certificates,
    auth_server: AuthServer,
    start: Start,
    to: Make,
    recorder: Recorder,
) -> None:
    nsqd_options = offering_tls(certificates.server)
    if layer == "mutual TLS":
        nsqd_options += asking_for_certificates(certificates)
    if auth:
        nsqd_options += (f"--auth-http-address={auth_server.address}",)
    nsqd = start(*nsqd_options)
    options: dict[str, Any] = {"compression": compression, "auth_secret": Secret(SECRET) if auth else None}
    if layer != "plain":
        options["tls"] = tls_client(certificates, **(showing(certificates.client) if layer == "mutual TLS" else {}))
    if layer == "TLSv1.2":
        options["tls"].context.maximum_version = ssl.TLSVersion.TLSv1_2
    topic, bodies = next(TOPICS), mixed_bodies(f"{layer} {compression} {auth}", CELL_BYTES)

    consuming, publishing = to(nsqd, **options), to(nsqd, **options)
    await publishing.open()
    await subscribe(consuming, topic)
    consuming.set_rdy(100)
    for batch in batches_of(bodies):
        await publishing.request(protocol.mpub(topic, batch))
    await until(lambda: len(recorder.messages) >= len(bodies), PATIENCE_S, f"{len(bodies)} messages")

    assert sorted(message.body for message in recorder.messages) == sorted(bodies)
    assert consuming.tls_version == {"plain": "", "mutual TLS": "TLSv1.3"}.get(layer, layer)
    await until(lambda: not unfinished(nsqd, topic), PATIENCE_S, "everything to be finished")
    (client,) = nsqd.channel_stats(topic, CHANNEL)["clients"]
    assert (client["tls"], client["snappy"], client["deflate"], client.get("authed", False)) == (
        layer != "plain", compression == "snappy", compression == "deflate", auth,
    )  # fmt: skip
    assert recorder.closed == []


def unfinished(nsqd: Nsqd, topic: str) -> int:
    stats = nsqd.channel_stats(topic, CHANNEL)
    return int(stats["depth"]) + int(stats["in_flight_count"]) + int(stats["timeout_count"])


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_a_hang_up_loses_no_word_of_what_was_said_before(
    compression: Compression, certificates: Certificates, start: Start, to: Make, recorder: Recorder
) -> None:
    nsqd = start(*offering_tls(certificates.server))
    topic = next(TOPICS)
    nsqd.create_channel(topic, CHANNEL)
    nsqd.publish_many(topic, [b"x" * 100] * 1_000)
    connection = to(nsqd, tls=tls_client(certificates), compression=compression)
    await subscribe(connection, topic)
    connection.set_rdy(1_000)
    await until(lambda: len(recorder.messages) == 1_000, PATIENCE_S, "1,000 messages")
    await connection.say_goodbye()
    await connection.hang_up()
    assert unfinished(nsqd, topic) == 0


@pytest.mark.parametrize("layer", ["plain", "TLS"])
async def test_an_address_of_ipv6_is_one_like_others(
    layer: str, certificates: Certificates, start: Start, to: Make, recorder: Recorder
) -> None:
    nsqd = start(*offering_tls(certificates.server), host="::1")
    topic = next(TOPICS)
    nsqd.publish(topic, b"x")
    connection = to(nsqd, tls=tls_client(certificates) if layer == "TLS" else None)
    await subscribe(connection, topic)
    connection.set_rdy(1)
    await until(lambda: recorder.messages, PATIENCE_S, "the message")
    assert str(connection.address) == f"[::1]:{nsqd.tcp_address[1]}"


async def test_the_publisher_goes_the_same_way(
    certificates: Certificates, auth_server: AuthServer, start: Start, to: Make, recorder: Recorder
) -> None:
    nsqd = start(
        *offering_tls(certificates.server),
        *asking_for_certificates(certificates),
        f"--auth-http-address={auth_server.address}",
    )
    options = ConnectionOptions(
        heartbeat_interval_ms=30_000,
        tls=tls_client(certificates, **showing(certificates.client)),
        compression="snappy",
        auth_secret=Secret(SECRET),
    )
    publisher = Publisher(options)
    topic = next(TOPICS)
    nsqd.create_channel(topic, CHANNEL)
    try:
        await publisher.publish(Address(*nsqd.tcp_address), topic, [b"one", b"two" * 100_000])
    finally:
        await publisher.close()
    assert nsqd.channel_stats(topic, CHANNEL)["depth"] == 2


# -- what nsqd shows us, and what we do not accept


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            "wrong_host",
            f"its certificate is valid, but not for {HOST}; connect by a name that the certificate contains, or "
            "give nsqd one for this name (subjectAltName)",
        ),
        ("expired", "its certificate has expired; renew the one of nsqd's --tls-cert, or set this machine's clock"),
        ("not_yet", "its certificate is not valid yet; set the clocks of both machines, or wait"),
        (
            "wrong_purpose",
            "its certificate does not pass (unsuitable certificate purpose); give nsqd another (--tls-cert), or see "
            "nsq.tls.ca_file",
        ),
        (
            "self_signed",
            "its certificate is signed by itself; name that very certificate in nsq.tls.ca_file, if it is nsqd's",
        ),
        (
            "strange",
            "its certificate is signed by an authority that is not trusted here (unable to get local issuer "
            "certificate); name that authority in nsq.tls.ca_file",
        ),
    ],
)
async def test_a_certificate_that_does_not_pass_is_refused_with_its_cause(
    kind: str, said: str, certificates: Certificates, start: Start, to: Make
) -> None:
    nsqd = start(*offering_tls(getattr(certificates, kind)))
    assert await refused(to(nsqd, tls=tls_client(certificates))) == f"nsqd at NSQD: TLS failed: {said}"


async def test_without_a_file_the_systems_authorities_decide(
    certificates: Certificates, start: Start, to: Make
) -> None:
    nsqd = start(*offering_tls(certificates.server))
    said = await refused(to(nsqd, tls=tls_client(certificates, ca_file="")))
    assert "signed by an authority that is not trusted here" in said


@pytest.mark.parametrize("kind", ["wrong_host", "expired", "self_signed", "strange"])
async def test_insecure_takes_any_certificate(kind: str, certificates: Certificates, start: Start, to: Make) -> None:
    nsqd = start(*offering_tls(getattr(certificates, kind)))
    connection = to(nsqd, tls=tls_client(certificates, insecure=True))
    await connection.open()
    assert connection.tls_version == "TLSv1.3"


async def test_a_certificate_signed_by_itself_that_the_file_names_is_looked_at_for_its_name(
    certificates: Certificates, start: Start, to: Make
) -> None:
    nsqd = start(*offering_tls(certificates.self_signed))
    own = str(certificates.self_signed.cert_file)
    assert f"not for {HOST}" in await refused(to(nsqd, tls=tls_client(certificates, ca_file=own)))


async def test_tls_that_is_asked_for_and_not_offered_is_refused(
    certificates: Certificates, start: Start, to: Make
) -> None:
    connection = to(start(), tls=tls_client(certificates))
    assert await refused(connection) == (
        "nsqd at NSQD does not offer TLS, which [nsq.tls] asks for; start nsqd with --tls-cert and --tls-key, or take "
        "[nsq.tls] out of the file to go on in the clear"
    )


async def test_tls_that_nsqd_requires_and_the_file_does_not_have_is_told(
    certificates: Certificates, start: Start, to: Make
) -> None:
    nsqd = start(*offering_tls(certificates.server), "--tls-required=tcp-https")
    assert await refused(to(nsqd)) == (
        "E_INVALID: cannot SUB in current state (TLS required); nsqd takes clients only over TLS (--tls-required): "
        "write [nsq.tls] in the file"
    )


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_certificate_that_is_missing_is_asked_for(
    newest: ssl.TLSVersion, certificates: Certificates, start: Start, to: Make
) -> None:
    nsqd = start(*offering_tls(certificates.server), *asking_for_certificates(certificates))
    client = tls_client(certificates)
    client.context.maximum_version = newest
    assert await refused(to(nsqd, tls=client)) == (
        "nsqd at NSQD: TLS failed: nsqd asks for a client certificate, and there is none; write cert_file and key_file "
        "under [nsq.tls]"
    )


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_certificate_that_nsqd_does_not_accept_is_told(
    newest: ssl.TLSVersion, certificates: Certificates, start: Start, to: Make
) -> None:
    nsqd = start(*offering_tls(certificates.server), *asking_for_certificates(certificates))
    client = tls_client(certificates, **showing(certificates.strange))
    client.context.maximum_version = newest
    assert await refused(to(nsqd, tls=client)) == (
        "nsqd at NSQD: TLS failed: nsqd does not accept our client certificate; name one in nsq.tls.cert_file that an "
        "authority of nsqd's --tls-root-ca-file has signed"
    )


async def test_no_version_of_tls_in_common_is_told(certificates: Certificates, start: Start, to: Make) -> None:
    nsqd = start(*offering_tls(certificates.server), "--tls-min-version=tls1.3")
    client = tls_client(certificates)
    client.context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert "no version of TLS in common; let nsqd speak TLS 1.2 or 1.3" in await refused(to(nsqd, tls=client))


# -- limits of nsqd


@pytest.mark.parametrize(
    ("flag", "asked", "said"),
    [
        (
            "--max-msg-timeout=2m",
            {"msg_timeout_ms": 180_000},
            'E_BAD_BODY: IDENTIFY msg timeout (180000) is invalid; nsq.msg_timeout asks for "180s", more than '
            "nsqd's --max-msg-timeout: write a shorter one, or raise that",
        ),
        (
            "--max-heartbeat-interval=10s",
            {},
            'E_BAD_BODY: IDENTIFY heartbeat interval (30000) is invalid; nsq.heartbeat_interval asks for "30s", more '
            "than nsqd's --max-heartbeat-interval: write a shorter one, or raise that",
        ),
        (
            "--max-output-buffer-size=16384",
            {},
            "E_BAD_BODY: IDENTIFY output buffer size (65536) is invalid; nsqdigest needs 65536 bytes: raise nsqd's "
            "--max-output-buffer-size to that",
        ),
        (
            "--min-output-buffer-timeout=100ms",
            {},
            "E_BAD_BODY: IDENTIFY output buffer timeout (25) is invalid; nsqdigest needs 25 ms: lower nsqd's "
            "--min-output-buffer-timeout to that",
        ),
    ],
)
async def test_an_option_that_nsqd_refuses_is_named_with_the_remedy(
    flag: str, asked: dict[str, Any], said: str, start: Start, to: Make
) -> None:
    assert await refused(to(start(flag), **asked)) == said


# -- AUTH


async def test_a_secret_that_is_missing_is_asked_for(auth_server: AuthServer, start: Start, to: Make) -> None:
    nsqd = start(f"--auth-http-address={auth_server.address}")
    assert await refused(to(nsqd)) == (
        "nsqd at NSQD requires AUTH, and nsq.auth_secret is empty; write the secret that its auth server knows, such "
        'as auth_secret = "env:NSQ_SECRET" under [nsq]'
    )


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        (
            "wrong",
            "E_AUTH_FAILED: AUTH failed; nsqd's auth server (--auth-http-address) refused nsq.auth_secret, or did not "
            "answer: correct the secret, or read in nsqd's log why",
        ),
        (
            "nothing",
            "E_UNAUTHORIZED: AUTH no authorizations found; nsq.auth_secret has no permission for this: grant it at "
            "nsqd's auth server (--auth-http-address)",
        ),
        (
            "reader",
            'E_UNAUTHORIZED: AUTH failed for SUB on "events" "ch"; nsq.auth_secret has no permission for this: '
            "grant it at nsqd's auth server (--auth-http-address)",
        ),
    ],
)
async def test_a_secret_that_may_not_is_told(
    secret: str, said: str, auth_server: AuthServer, start: Start, to: Make
) -> None:
    nsqd = start(f"--auth-http-address={auth_server.address}")
    assert await refused(to(nsqd, auth_secret=Secret(secret))) == said


async def test_what_a_secret_may_do_it_does(auth_server: AuthServer, start: Start, to: Make) -> None:
    connection = to(start(f"--auth-http-address={auth_server.address}"), auth_secret=Secret("reader"))
    await subscribe(connection, "allowed")
    assert connection.is_open


async def test_an_auth_server_that_is_not_there_is_told(start: Start, to: Make) -> None:
    nsqd = start(f"--auth-http-address={HOST}:{free_port()}")
    assert "E_AUTH_FAILED: AUTH failed; nsqd's auth server" in await refused(to(nsqd, auth_secret=Secret(SECRET)))


async def test_a_secret_is_not_sent_where_none_is_asked_for(start: Start, to: Make) -> None:
    connection = to(start(), auth_secret=Secret(SECRET))
    await subscribe(connection)
    assert connection.is_open


async def test_a_secret_is_in_no_message_and_no_repr() -> None:
    options = ConnectionOptions(heartbeat_interval_ms=30_000, auth_secret=Secret(SECRET))
    assert SECRET not in repr(options)


# -- compression that is not offered


@pytest.mark.parametrize("compression", ["snappy", "deflate"])
async def test_compression_that_is_not_offered_is_done_without_and_said(
    compression: Compression, start: Start, to: Make, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    nsqd = start("--snappy=false", "--deflate=false")
    topic = next(TOPICS)
    nsqd.publish(topic, b"x")
    connection = to(nsqd, compression=compression)
    await subscribe(connection, topic)
    connection.set_rdy(1)
    await until(lambda: recorder.messages, PATIENCE_S, "the message")
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert record.msg == "connection.compression.not_offered"
    assert record.__dict__["fields"]["compression"] == compression


async def test_a_lower_level_of_nsqd_is_the_one_that_is_used(start: Start, to: Make, recorder: Recorder) -> None:
    connection = to(start("--max-deflate-level=1"), compression="deflate")
    assert (await connection.open()).deflate_level == 1
    topic = next(TOPICS)
    await connection.subscribe(topic, CHANNEL)
    connection.set_rdy(1)
    await connection.request(protocol.pub(topic, b"x" * 10_000))
    await until(lambda: recorder.messages, PATIENCE_S, "the message")
    assert recorder.messages[0].body == b"x" * 10_000
