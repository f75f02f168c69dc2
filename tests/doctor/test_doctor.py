"""`nsqdigest doctor` against real servers: all well, and each thing broken in its own way."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from nsqdigest.base.errors import EXIT_CONFIG, EXIT_NO, EXIT_OK
from nsqdigest.base.findings import Finding, State
from nsqdigest.base.screen import GREEN
from nsqdigest.config import parse_text
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.doctor import examination
from support.auth_server import EVERYTHING, AuthServer
from support.certificates import Certificates
from support.daemon import Daemon, installed_command, run_command, toml
from support.lookupd import ScriptedLookupd, naming
from support.mail_server import MailServer
from support.ports import HOST, free_port
from support.receiver import Receiver
from support.redis_sets import AT_ONCE, RedisCluster, replica_of
from support.servers import MissingServer, Nsqd, RedisServer, find_binary
from support.stores import limited_url
from support.waiting import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.servers]

OK, NOTE, WARN, FAIL = State
WELL = ("--appendonly", "yes", "--maxmemory", "100mb", *AT_ONCE)
NAMESPACE = "test"
ROUTE = {"name": "events", "topic": "events", "timeline": "{user}", "sink": "out"}
Tables = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def sound_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), *WELL) as server:
        yield server


@pytest.fixture(scope="module")
def sound_nsqd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    with Nsqd(tmp_path_factory.mktemp("nsqd")) as server:
        yield server


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tables(sound_redis: RedisServer, sound_nsqd: Nsqd, tmp_path: Path) -> Tables:
    """A file of which everything is well."""
    sound_redis.cli("FLUSHALL")
    return {
        "nsq": {"nsqd_tcp_addresses": [at(sound_nsqd)]},
        "redis": {"url": sound_redis.url, "namespace": NAMESPACE},
        "sinks.out": {"type": "log", "path": str(tmp_path / "out.log")},
        "admin": {"listen": f"{HOST}:{free_port()}"},
    }


def at(nsqd: Nsqd) -> str:
    host, port = nsqd.tcp_address
    return f"{host}:{port}"


async def look(tables: Tables, **parts: Mapping[str, Any]) -> dict[str, list[Finding]]:
    """What is found of each part. Settings of `parts` are laid over a table of that name (`nsq_tls` is nsq.tls)."""
    merged = {name: dict(table) for name, table in tables.items()}
    for name, table in parts.items():
        merged.setdefault(name.replace("_", "."), {}).update(table)
    config = parse_text(toml(merged, [ROUTE]), "nsqdigest.toml", {}, KINDS)
    return {part.name: list(part.findings) for part in await examination.examine(config, KINDS)}


def bad(found: Mapping[str, list[Finding]]) -> list[Finding]:
    return [finding for findings in found.values() for finding in findings if finding.state in (WARN, FAIL)]


# -- the command


def test_all_is_well(tables: Tables, tmp_path: Path, sound_redis: RedisServer) -> None:
    file = tmp_path / "nsqdigest.toml"
    file.write_text(toml(tables, [ROUTE]), "utf-8")
    done = run_command("doctor", "-c", str(file))
    assert (done.returncode, done.stderr) == (EXIT_OK, ""), done.stdout
    assert done.stdout.splitlines()[-1].startswith("nothing found: ")
    assert "\x1b" not in done.stdout
    assert sound_redis.cli("DBSIZE") == 0
    assert not (tmp_path / "out.log").exists()


def test_all_at_once_out_of_reach_is_exit_code_1_as_json(tables: Tables, tmp_path: Path) -> None:
    ports = [free_port() for _ in range(4)]
    file = tmp_path / "nsqdigest.toml"
    broken: Tables = {
        "nsq": {"nsqd_tcp_addresses": [f"{HOST}:{ports[0]}"], "lookupd_http_addresses": [f"{HOST}:{ports[1]}"]},
        "redis": {"url": f"redis://:hidden@{HOST}:{ports[2]}/0"},
        "sinks.out": {"type": "webhook", "url": f"http://{HOST}:{ports[3]}/hidden", "secret": "whsec_" + "A" * 44},
        "admin": tables["admin"],
    }
    file.write_text(toml(broken, [ROUTE]), "utf-8")
    done = run_command("doctor", "-c", str(file), "--json")
    assert (done.returncode, done.stderr) == (EXIT_NO, "")
    answer = json.loads(done.stdout)
    assert answer["ok"] is False
    failed = {check["what"]: check for check in answer["checks"] if check["state"] == "fail"}
    names = [f"nsqlookupd {HOST}:{ports[1]}", f"nsqd {HOST}:{ports[0]}"]
    assert list(failed) == [*names, f"redis redis://***@{HOST}:{ports[2]}/0", "sink out"]
    assert all("Connection refused" in check["detail"] and check["remedy"] for check in failed.values())
    assert "hidden" not in done.stdout


def test_a_warning_is_exit_code_0_and_with_strict_1(tables: Tables, tmp_path: Path) -> None:
    unused = {"sinks.more": {"type": "log", "path": str(tmp_path / "more.log")}}
    file = tmp_path / "nsqdigest.toml"
    file.write_text(toml({**tables, **unused}, [ROUTE]), "utf-8")
    for strict, code in (((), EXIT_OK), (("--strict",), EXIT_NO)):
        done = run_command("doctor", str(file), *strict)
        assert (done.returncode, done.stdout.splitlines()[-1].startswith("found: 1 warning, ")) == (code, True)
        done = run_command("doctor", str(file), *strict, "--json")
        answer = json.loads(done.stdout)
        assert (done.returncode, answer["ok"]) == (code, code == EXIT_OK)
        assert [check["state"] for check in answer["checks"] if check["state"] in ("warn", "fail")] == ["warn"]
        (warning,) = answer["warnings"]
        assert (warning["file"], warning["path"], answer["problems"]) == (str(file), "sinks.more", [])


def test_a_wrong_file_is_exit_code_78_and_its_problems_are_checks(tmp_path: Path) -> None:
    file = tmp_path / "nsqdigest.toml"
    file.write_text("[nsq]\nchannel = 5\n", "utf-8")
    done = run_command("doctor", "-c", str(file), "--json")
    assert (done.returncode, done.stderr) == (EXIT_CONFIG, "")
    answer = json.loads(done.stdout)
    assert (answer["ok"], {check["state"] for check in answer["checks"]}) == (False, {"fail"})
    assert any(f"{file}:2: nsq.channel" in check["detail"] for check in answer["checks"])
    assert answer["problems"] == json.loads(run_command("check", str(file), "--json").stdout)["problems"]
    assert {"file", "line", "path", "problem", "remedy"} == set(answer["problems"][0])
    done = run_command("doctor", "-c", str(file))
    assert (done.returncode, done.stdout) == (EXIT_CONFIG, "")
    assert done.stderr == run_command("check", "-c", str(file)).stderr


@pytest.mark.parametrize(("no_color", "is_coloured"), [("", True), ("1", False)])
def test_a_terminal_gets_colour_unless_it_wants_none(
    tables: Tables, tmp_path: Path, no_color: str, is_coloured: bool
) -> None:
    file = tmp_path / "nsqdigest.toml"
    file.write_text(toml(tables, [ROUTE]), "utf-8")
    ours, theirs = pty.openpty()
    environ = os.environ | {"TERM": "xterm", "NO_COLOR": no_color}
    process = subprocess.Popen([installed_command(), "doctor", "-c", str(file)], stdout=theirs, env=environ)
    assert process.wait(PATIENCE_S) == EXIT_OK
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    os.close(theirs)
    assert (f"\x1b[{GREEN}mok  \x1b[0m" in shown, "\x1b" in shown) == (is_coloured, is_coloured)


# -- nsqd


async def test_tls_auth_and_compression_are_told_as_negotiated(
    tables: Tables, nsqd_factory: Callable[..., Nsqd], certificates: Certificates
) -> None:
    with AuthServer({"secret": EVERYTHING}) as auth:
        pair = certificates.server
        nsqd = nsqd_factory(
            f"--tls-cert={pair.cert_file}", f"--tls-key={pair.key_file}", f"--auth-http-address={auth.address}"
        )
        nsq = {"nsqd_tcp_addresses": [at(nsqd)], "auth_secret": "secret", "compression": "deflate"}
        found = await look(tables, nsq=nsq, nsq_tls={"ca_file": str(certificates.ca_file)})
    (told,) = found["nsqd"]
    assert told.state is OK
    for words in ("TLSv1.3 ", f"certificate of {HOST}", " until 3000-01-01", "compression deflate", "AUTH accepted"):
        assert words in told.detail


@pytest.mark.parametrize("compression", ["none", "snappy", "deflate"])
async def test_an_nsqd_that_demands_tls_is_a_failure_where_the_file_has_none(
    tables: Tables, nsqd_factory: Callable[..., Nsqd], certificates: Certificates, compression: str
) -> None:
    pair = certificates.server
    nsqd = nsqd_factory(f"--tls-cert={pair.cert_file}", f"--tls-key={pair.key_file}", "--tls-required=tcp-https")
    found = await look(tables, nsq={"nsqd_tcp_addresses": [at(nsqd)], "compression": compression})
    (told,) = found["nsqd"]
    assert told.state is FAIL
    assert "write [nsq.tls] in the file" in told.remedy


async def test_the_http_port_of_an_nsqd_and_a_redis_are_recognised_as_such(
    tables: Tables, sound_nsqd: Nsqd, sound_redis: RedisServer
) -> None:
    host, port = sound_nsqd.http_address
    redis = sound_redis.url.removeprefix("redis://").split("/")[0]
    found = await look(tables, nsq={"nsqd_tcp_addresses": [f"{host}:{port}", redis]})
    http, other = found["nsqd"]
    assert (http.state, other.state) == (FAIL, FAIL)
    assert "it speaks HTTP" in http.detail
    assert "TCP port, usually 4150" in http.remedy
    assert "it speaks Redis' protocol" in other.detail


async def test_what_is_no_redis_is_told_as_what_it_is(tables: Tables, sound_nsqd: Nsqd) -> None:
    for (host, port), kind in ((sound_nsqd.http_address, "an HTTP server"), (sound_nsqd.tcp_address, "an nsqd")):
        found = await look(tables, redis={"url": f"redis://{host}:{port}/0"})
        assert f"{kind} answers there, not Redis" in found["redis"][0].detail
        assert found["redis"][0].remedy == "look at host and port in redis.url"


async def test_each_nsqd_that_does_not_fit_is_told_why_and_the_others_are_well(
    tables: Tables, nsqd_factory: Callable[..., Nsqd], sound_nsqd: Nsqd, certificates: Certificates
) -> None:
    pair, wrong = certificates.server, certificates.wrong_host
    good = nsqd_factory(f"--tls-cert={pair.cert_file}", f"--tls-key={pair.key_file}", "--snappy=false")
    other = nsqd_factory(f"--tls-cert={wrong.cert_file}", f"--tls-key={wrong.key_file}")
    nsq = {"nsqd_tcp_addresses": [at(good), at(other), at(sound_nsqd)], "compression": "snappy"}
    found = await look(tables, nsq=nsq, nsq_tls={"ca_file": str(certificates.ca_file)})
    assert [(each.what, each.state) for each in found["nsqd"]] == [
        (at(good), OK), (at(good), WARN), (at(other), FAIL), (at(sound_nsqd), FAIL),
    ]  # fmt: skip
    _, no_snappy, strange, clear = found["nsqd"]
    assert "does not offer snappy" in no_snappy.detail
    assert f"valid, but not for {HOST}" in strange.detail
    assert "does not offer TLS" in clear.detail


async def test_a_wrong_secret_is_told(tables: Tables, nsqd_factory: Callable[..., Nsqd]) -> None:
    with AuthServer({"secret": EVERYTHING}) as auth:
        nsqd = nsqd_factory(f"--auth-http-address={auth.address}")
        found = await look(tables, nsq={"nsqd_tcp_addresses": [at(nsqd)], "auth_secret": "other"})
    (told,) = bad(found)
    assert (told.state, "nsq.auth_secret" in told.remedy) == (FAIL, True)


# -- nsqlookupd


async def test_an_address_that_no_one_reaches_is_named_once_with_the_hint(tables: Tables, sound_nsqd: Nsqd) -> None:
    away = HOST, free_port()
    named = naming(sound_nsqd.tcp_address, away, ("not an address", 4150))
    async with ScriptedLookupd(named) as first, ScriptedLookupd(named) as second:
        lookupds = [f"{HOST}:{each.port}" for each in (first, second)]
        found = await look(tables, nsq={"lookupd_http_addresses": lookupds})
    assert [(each.what, each.state) for each in found["nsqd"]] == [
        (at(sound_nsqd), OK),
        (f"{HOST}:{away[1]}", FAIL),
    ]
    told = found["nsqd"][1]
    assert "-broadcast-address" in told.remedy
    assert all(lookupd in told.detail for lookupd in lookupds)
    assert [each.state for each in found["nsqlookupd"]] == [OK, FAIL, OK, FAIL]
    assert found["topic"] == [Finding("events", OK, "2 nsqds have it")]


async def test_a_topic_that_nobody_has_is_said_and_is_no_failure(tables: Tables) -> None:
    async with ScriptedLookupd(naming()) as lookupd:
        found = await look(tables, nsq={"lookupd_http_addresses": [f"{HOST}:{lookupd.port}"]})
    assert [each.state for each in found["topic"]] == [NOTE]
    assert bad(found) == []


async def test_an_nsqd_among_the_nsqlookupds_is_named_with_its_own_place(tables: Tables, sound_nsqd: Nsqd) -> None:
    host, port = sound_nsqd.http_address
    (told,) = bad(await look(tables, nsq={"lookupd_http_addresses": [f"{host}:{port}"]}))
    assert (told.what, told.detail) == (f"{host}:{port}", "an nsqd answers there, not a nsqlookupd")
    assert told.remedy.startswith(f'write "{at(sound_nsqd)}" in nsq.nsqd_tcp_addresses')


# -- Redis


async def test_a_replica_is_refused(tables: Tables, sound_redis: RedisServer, tmp_path: Path) -> None:
    with_replica = replica_of(sound_redis, tmp_path / "replica", None, *WELL)
    try:
        found = await look(tables, redis={"url": with_replica.url})
    finally:
        with_replica.kill()
        with_replica.forget()
    (told,) = bad(found)
    assert (told.state, told.remedy) == (FAIL, "name its primary, unless it is about to become one")


async def test_settings_that_lose_events_are_warned_of(tables: Tables, redis_url: str) -> None:
    found = await look(tables, redis={"url": redis_url})
    assert [(each.state, each.remedy) for each in bad(found)] == [
        (WARN, "set appendonly yes"),
        (WARN, "set maxmemory"),
    ]


async def test_another_number_of_partitions_is_told_and_nothing_is_written(
    tables: Tables, sound_redis: RedisServer
) -> None:
    sound_redis.cli("HSET", "{test:0}:layout", "schema", 4, "partitions", 4)
    (told,) = bad(await look(tables))
    assert (told.state, told.remedy) == (FAIL, "write 4, or choose another redis.namespace")
    assert sound_redis.cli("DBSIZE") == 1


async def test_an_orphan_is_told(tables: Tables, sound_redis: RedisServer) -> None:
    for command in (
        ("HSET", "{test:0}:routes", "old", 1, "events", 1),
        ("ZADD", "{test:0}:waiting:old", 1, "t"),
        ("HSET", "{test:0}:ledger:old", "open", 3),
    ):
        sound_redis.cli(*command)
    (told,) = bad(await look(tables))
    assert (told.what, told.state, "1 timeline with 3 records" in told.detail) == ("route old", WARN, True)


async def test_a_user_with_the_rights_of_the_documentation_is_well(tables: Tables, sound_redis: RedisServer) -> None:
    found = await look(tables, redis={"url": limited_url(sound_redis)})
    assert bad(found) == []
    assert [each.state for each in found["redis"] if each.what == "user nsqdigest"] == [OK]


@pytest.mark.parametrize(
    ("taken", "remedy"),
    [
        (("-hset", "-zadd"), "ACL SETUSER nsqdigest +hset +zadd"),
        (("resetkeys", "~other*"), "ACL SETUSER nsqdigest ~{test:* and"),
        (("-evalsha",), "give that user the rights that docs/redis.md lists"),
        (("-info",), "ACL SETUSER nsqdigest +info"),
    ],
)
async def test_a_right_that_is_missing_is_told(
    tables: Tables, sound_redis: RedisServer, taken: tuple[str, ...], remedy: str
) -> None:
    url = limited_url(sound_redis)
    sound_redis.cli("ACL", "SETUSER", "nsqdigest", *taken)
    told = bad(await look(tables, redis={"url": url}))
    assert {each.state for each in told} == {FAIL}
    assert any(each.remedy.startswith(remedy) or remedy in each.remedy for each in told)


async def test_a_wrong_password_is_told_and_not_shown(tables: Tables, sound_redis: RedisServer) -> None:
    limited_url(sound_redis)
    (told,) = bad(await look(tables, redis={"url": f"redis://nsqdigest:hidden@{HOST}:{sound_redis.port}/0"}))
    assert told.remedy == "look at the user and password in redis.url"
    assert "hidden" not in str(told)


async def test_a_database_that_is_not_there_is_told_with_its_own_remedy(
    tables: Tables, sound_redis: RedisServer
) -> None:
    (told,) = bad(await look(tables, redis={"url": f"redis://{HOST}:{sound_redis.port}/99"}))
    assert told.detail == "redis-database: DB index is out of range"
    assert told.remedy.startswith("end redis.url with a lower number")


async def test_tls_to_a_redis_is_judged_by_the_cause(
    tables: Tables, sound_redis: RedisServer, certificates: Certificates, tmp_path: Path
) -> None:
    port, pair = free_port(), certificates.server
    files = ("--tls-cert-file", pair.cert_file, "--tls-key-file", pair.key_file, "--tls-ca-cert-file", pair.cert_file)
    offers = ("--tls-port", port, *files, "--tls-auth-clients", "no")
    with RedisServer(tmp_path / "redis", *WELL, *map(str, offers)):
        encrypted = {"url": f"rediss://{HOST}:{port}/0", "ca_file": str(certificates.ca_file)}
        assert bad(await look(tables, redis=encrypted)) == []
        (strange,) = bad(await look(tables, redis={"url": encrypted["url"]}))
        assert "its certificate is signed by an authority that is not trusted here" in strange.detail
        assert strange.remedy == "name that authority in redis.ca_file"
        (plain,) = bad(await look(tables, redis={"url": f"redis://{HOST}:{port}/0"}))
        assert plain.remedy == "see that it runs; if it has TLS, write rediss:// for redis:// in redis.url"
    (other,) = bad(await look(tables, redis={"url": f"rediss://{HOST}:{sound_redis.port}/0"}))
    assert "if it has no TLS, write redis:// for rediss://" in other.remedy


async def test_before_redis_7_rights_are_said_to_be_unchecked(tables: Tables, tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "old", *WELL)
    try:
        server.executable = find_binary("redis-server-6.2")
    except MissingServer as problem:
        pytest.skip(str(problem))  # in CI as well: it is fetched where it can be had
    with server:
        found = await look(tables, redis={"url": limited_url(server)})
    assert bad(found) == []
    assert [each.state for each in found["redis"] if each.what.startswith("user ")] == [NOTE]


async def test_a_redis_behind_a_socket_is_looked_at_like_others(tables: Tables, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", *WELL, "--unixsocket", str(tmp_path / "redis.sock")):
        found = await look(tables, redis={"url": f"unix://{tmp_path}/redis.sock"})
    assert bad(found) == []
    assert [each.state for each in found["redis"]] == [OK, OK, OK, NOTE]


async def test_every_server_of_a_cluster_is_looked_at_and_one_that_is_away_is_named(
    tables: Tables, tmp_path: Path
) -> None:
    away = free_port()
    with RedisCluster(tmp_path / "cluster", *WELL[:4], replicas=0) as cluster:
        found = await look(tables, redis={"url": f"{cluster.url},{HOST}:{away}"})
    assert {each.what for each in found["redis"] if "primary" in each.detail} == {
        f"{HOST}:{server.port}" for server in cluster.servers
    }
    (told,) = bad(found)
    assert (told.what, told.state) == (f"{HOST}:{away}", WARN)


# -- sinks


@pytest.fixture
def trusted_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """This machine believes it for as long as the test."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return authority


def hook(tables: Tables, url: str) -> Tables:
    return {**tables, "sinks.out": {"type": "webhook", "url": url, "secret": "whsec_" + "A" * 44}}


async def test_a_webhook_is_reached_and_nothing_is_posted(tables: Tables) -> None:
    with Receiver() as receiver:
        found = await look(hook(tables, receiver.url))
        assert receiver.posts == []
    assert [each.state for each in found["sink"]] == [OK]


@pytest.mark.parametrize(
    ("host", "days", "expected"),
    [(HOST, 100, [OK]), (HOST, 3, [OK, WARN]), (HOST, -1, [FAIL]), ("hook.example", 100, [FAIL])],
)
async def test_a_webhooks_certificate_is_looked_at(
    tables: Tables, trusted_authority: trustme.CA, host: str, days: float, expected: list[State]
) -> None:
    context, now = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), datetime.now(UTC)
    begin, end = now - timedelta(days=9), now + timedelta(days=days)
    trusted_authority.issue_cert(host, not_before=begin, not_after=end).configure_cert(context)
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""
        writer.close()
        left.set()

    async with await asyncio.start_server(serve, HOST, 0, ssl=context) as server:
        found = await look(hook(tables, f"https://{HOST}:{server.sockets[0].getsockname()[1]}/hook"))
        if FAIL not in expected:
            await left.wait()
    assert [each.state for each in found["sink"]] == expected
    assert all("certificate" in each.detail for each in found["sink"])


def mail(tables: Tables, server: MailServer, **options: Any) -> Tables:
    sink = {"type": "email", "host": HOST, "port": server.port, "from": "a@example.com", "to": "b@example.com"}
    return {**tables, "sinks.out": {**sink, **options}}


async def test_a_mail_server_is_logged_in_to_and_gets_no_mail(tables: Tables, certificates: Certificates) -> None:
    with MailServer(certificates.server, login=("alerts", "hidden")) as server:
        login = {"ca_file": str(certificates.ca_file), "user": "alerts", "password": "hidden"}
        (well,) = (await look(mail(tables, server, **login)))["sink"]
        assert (well.what, well.state) == ("out", OK)
        assert "TLSv1.3, certificate of" in well.detail
        assert "; logged in as alerts; takes 33,554,432 bytes; no mail was sent" in well.detail
        (wrong,) = bad(await look(mail(tables, server, **login | {"password": "wrong"})))
        assert wrong == Finding(
            "out", FAIL, f"{HOST}:{server.port}: 535 5.7.8: user or password wrong (AUTH)",
            "see that it runs, and host, port, tls, user and password of this sink",
        )  # fmt: skip
        (strange,) = bad(await look(mail(tables, server)))
        assert "its certificate is signed by an authority that is not trusted here" in strange.detail
        assert server.commands["MAIL"] == 0


async def test_a_mail_server_that_offers_less_than_the_file_asks_for_is_a_failure(tables: Tables) -> None:
    with MailServer() as server:
        (found,) = bad(await look(mail(tables, server)))
        assert (found.state, found.detail.count("offers no STARTTLS")) == (FAIL, 1)
        (found,) = (await look(mail(tables, server, tls="none")))["sink"]
        assert "in the clear; no login; takes 33,554,432 bytes" in found.detail
        server.down()
        (found,) = bad(await look(mail(tables, server, tls="none")))
        assert found.detail == f"{HOST}:{server.port}: Connection refused (greeting)"


async def test_a_log_that_can_not_be_written_is_told(tables: Tables, tmp_path: Path) -> None:
    found = await look(tables, sinks_out={"path": str(tmp_path / "no" / "out.log")})
    (told,) = bad(found)
    assert (told.what, told.state) == ("out", FAIL)


async def test_each_nsqd_of_a_sink_is_looked_at_and_nothing_is_published(tables: Tables, sound_nsqd: Nsqd) -> None:
    down = f"{HOST}:{free_port()}"
    queue = {"type": "nsq", "nsqd_tcp_addresses": [at(sound_nsqd), down], "topic": "digests"}
    found = await look(tables, sinks_queue=queue)
    assert [(each.what, each.state) for each in found["sink"]] == [("out", OK), ("queue", OK), ("queue", FAIL)]
    assert found["sink"][1].detail.startswith(f"{at(sound_nsqd)}: nsqd 1.")
    assert bad(found)[0].detail.startswith(f"{down}: ")
    assert [topic for topic in sound_nsqd.stats()["topics"] if topic["topic_name"] == "digests"] == []


# -- the admin address


async def test_who_has_the_admin_address_is_told(tables: Tables, tmp_path: Path, sound_nsqd: Nsqd) -> None:
    assert [each.state for each in (await look(tables))["admin"]] == [OK]
    daemon = Daemon(tmp_path / "daemon", tables, [ROUTE])
    with daemon:
        (told,) = (await look(tables, admin={"listen": f"{HOST}:{daemon.ports[0]}"}))["admin"]
        assert (told.state, "a daemon runs here already" in told.detail) == (OK, True)
        daemon.stop()
    (told,) = (await look(tables, admin={"listen": f"{HOST}:{sound_nsqd.http_address[1]}"}))["admin"]
    assert (told.state, "not by a daemon" in told.detail) == (FAIL, True)
    (told,) = (await look(tables, admin={"listen": "192.0.2.1:4180", "token": "a-long-enough-token"}))["admin"]
    assert (told.state, "cannot listen there" in told.detail) == (FAIL, True)


# -- what hangs


async def test_a_daemon_that_hangs_is_named(tables: Tables, tmp_path: Path) -> None:
    with Daemon(tmp_path / "daemon", tables, [ROUTE]) as daemon:
        listen = {"listen": f"{HOST}:{daemon.ports[0]}"}
        async with asyncio.timeout(PATIENCE_S):
            while not any(each.what == "daemons" for each in (await look(tables, admin=listen))["redis"]):
                pass
        daemon.pause()
        try:
            (told,) = (await look(tables, admin=listen))["admin"]
        finally:
            daemon.resume()
    assert (told.state, "perhaps a daemon that hangs (pid " in told.detail) == (FAIL, True)


async def test_what_hangs_delays_nothing_else(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, sound_nsqd: Nsqd
) -> None:
    """A server that takes connections and never says a word, in the place of each service."""
    within_s = 2.0
    monkeypatch.setattr(examination, "WITHIN_S", within_s)  # a sound nsqd needs 0.5 s: it says nothing to a NOP
    with socket.create_server((HOST, 0)) as silent:
        address = f"{HOST}:{silent.getsockname()[1]}"
        nsq = {"nsqd_tcp_addresses": [at(sound_nsqd), address], "lookupd_http_addresses": [address]}
        began_s = time.monotonic()
        found = await look(hook(tables, f"https://{address}/x"), nsq=nsq, redis={"url": f"redis://{address}/0"})
        # Twice as long: the nsqds come after the nsqlookupd. One after the other they take five times as long.
        assert time.monotonic() - began_s < 4.5 * within_s
    assert [each.what for each in bad(found)] == [address, address, f"redis://{address}/0", "out"]
    assert {each.detail for each in bad(found)} == {"no answer within 2 s"}
    assert [each.state for each in found["nsqd"]] == [OK, FAIL]
    assert [each.state for each in found["admin"]] == [OK]
