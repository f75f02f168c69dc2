"""Sets of Redis servers for tests: a primary with replicas, Sentinels that watch one, a Cluster.

They are processes like the others (`support.servers`), one folder each. Time-outs are those of an impatient operator:
a primary that does not answer is replaced after a second or two. Not sooner: on a busy machine Sentinels would replace
one that is only slow, while a replica still confirms what it writes.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import redis
from redis.crc import key_slot

from support.ports import HOST
from support.servers import RedisServer, Server, ServerError
from support.waiting import PATIENCE_S, wait_until

DOWN_AFTER_MS = 1500
NODE_TIMEOUT_MS = 700
SLOTS = 16384
FORMED_WITHIN_S = 20.0
FAILED_OVER_WITHIN_S = 20.0
# Without a disk a primary waits for more replicas before it sends its data, and a second for the first acknowledgement.
AT_ONCE = ("--repl-diskless-sync", "no")


def replica_of(primary: RedisServer, folder: Path, port: int | None = None, *options: str) -> RedisServer:
    """Started, and in step with its primary. `port`: where it finds it, if not at its own (a proxy's)."""
    replica = RedisServer(
        folder, "--replicaof", HOST, str(port or primary.port), *AT_ONCE, *options, binary=primary.binary
    )
    replica.start()
    wait_until(lambda: _follows(replica, primary), what=f"{replica} to follow")
    return replica


def _follows(replica: RedisServer, primary: RedisServer) -> bool:
    """Both say so: the primary counts a replica for WAIT only after its first acknowledgement."""
    if info(replica, "replication").get("master_link_status") != "up":
        return False
    told = info(primary, "replication")
    replicas = [told[f"slave{number}"] for number in range(int(told["connected_slaves"]))]
    return any(each["port"] == replica.port and each["state"] == "online" for each in replicas)


def info(server: RedisServer, section: str) -> dict[str, Any]:
    with server.client() as client:
        said: dict[str, Any] = client.info(section)
    return said


class Sentinel(Server):
    """One Sentinel, watching one primary under the name `main`."""

    port_count = 1

    def __init__(self, folder: Path, primary: RedisServer, quorum: int) -> None:
        self.binary = primary.binary
        super().__init__(folder)
        self._primary_port = primary.port
        self._quorum = quorum

    def __str__(self) -> str:
        return f"sentinel on {', '.join(map(str, self.ports)) or 'no port yet'}"

    def _arguments(self) -> list[str]:
        configuration = self.folder / "sentinel.conf"
        if not configuration.exists():  # afterwards it is the Sentinel's own
            lines = [
                f"port {self.ports[0]}",
                f"bind {HOST}",
                f"dir {self.folder}",
                f"sentinel monitor main {HOST} {self._primary_port} {self._quorum}",
                f"sentinel down-after-milliseconds main {DOWN_AFTER_MS}",
                "sentinel failover-timeout main 2000",
            ]
            configuration.write_text("\n".join(lines) + "\n", encoding="ascii")
        return [str(configuration), "--sentinel"]

    def _answers(self, pid: int) -> bool:
        try:
            return bool(self.cli("INFO", "server")["process_id"] == pid)
        except (redis.ConnectionError, redis.TimeoutError):
            return False

    def cli(self, *words: str) -> Any:
        with redis.Redis(host=HOST, port=self.ports[0], socket_timeout=PATIENCE_S) as client:
            return client.execute_command(*words)

    def primary_port(self) -> int:
        return int(self.cli("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")[1])

    def knows(self, replicas: int, sentinels: int) -> bool:
        told = self.cli("SENTINEL", "MASTER", "main")
        fields = dict(zip(told[::2], told[1::2], strict=True)) if isinstance(told, list) else told
        said = {_text(name): _text(value) for name, value in fields.items()}
        return (int(said["num-slaves"]), int(said["num-other-sentinels"])) == (replicas, sentinels - 1)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class SentinelSet:
    """`with SentinelSet(folder) as servers: servers.url`. A primary with two replicas, and three Sentinels."""

    partitions = 1

    def __init__(
        self, folder: Path, *options: str, replicas: int = 2, sentinels: int = 3, binary: str = RedisServer.binary
    ) -> None:
        self._folder, self._options, self._binary = folder, options, binary
        self._counts = (replicas, sentinels)
        self._ending = ExitStack()
        self.servers: list[RedisServer] = []
        self.sentinels: list[Sentinel] = []

    def __enter__(self) -> Self:
        replicas, sentinels = self._counts
        with ExitStack() as ending:
            primary = RedisServer(self._folder / "primary", *AT_ONCE, *self._options, binary=self._binary)
            ending.enter_context(primary)
            self.servers = [primary]
            for number in range(replicas):
                replica = replica_of(primary, self._folder / f"replica-{number + 1}", None, *self._options)
                self.servers.append(replica)
                ending.push(replica)
            for number in range(sentinels):
                sentinel = Sentinel(self._folder / f"sentinel-{number + 1}", primary, sentinels // 2 + 1)
                self.sentinels.append(ending.enter_context(sentinel))
            wait_until(
                lambda: all(sentinel.knows(replicas, sentinels) for sentinel in self.sentinels),
                FORMED_WITHIN_S,
                "the Sentinels to know the replicas and each other",
            )
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'{HOST}:{sentinel.ports[0]}' for sentinel in self.sentinels)}/main/0"

    def cli(self, *words: str | bytes | int | float) -> Any:
        return self.primary.cli(*words)

    @property
    def primary(self) -> RedisServer:
        """The one that most Sentinels name."""
        ports = [sentinel.primary_port() for sentinel in self.sentinels if sentinel.running]
        port = max(set(ports), key=ports.count)
        return next(server for server in self.servers if server.port == port)

    def wait_for_another(self, than: RedisServer) -> RedisServer:
        def another() -> RedisServer | None:
            if all(sentinel.primary_port() != than.port for sentinel in self.sentinels):
                primary = self.primary
                if info(primary, "replication")["role"] == "master":
                    return primary
            return None

        found = wait_until(another, FAILED_OVER_WITHIN_S, "another primary")
        assert found is not None
        return found


class ClusterServer(RedisServer):
    def _arguments(self) -> list[str]:
        own = {"cluster-enabled": "yes", "cluster-node-timeout": str(NODE_TIMEOUT_MS)}
        own |= {"cluster-config-file": "nodes.conf", "cluster-replica-validity-factor": "0"}
        return [*super()._arguments(), *(word for name, value in own.items() for word in (f"--{name}", value))]

    @property
    def identity(self) -> str:
        return _text(self.cli("CLUSTER", "MYID"))


class RedisCluster:
    """`with RedisCluster(folder) as cluster: cluster.url`. Three primaries, and a replica of each."""

    partitions = 32

    def __init__(
        self, folder: Path, *options: str, primaries: int = 3, replicas: int = 1, binary: str = RedisServer.binary
    ) -> None:
        self._folder, self._options, self._binary = folder, options, binary
        self._counts = (primaries, replicas)
        self._ending = ExitStack()
        self.servers: list[ClusterServer] = []

    def __enter__(self) -> Self:
        primaries, replicas = self._counts
        with ExitStack() as ending:
            for number in range(primaries * (1 + replicas)):
                folder = self._folder / f"node-{number + 1}"
                server = ClusterServer(folder, *AT_ONCE, *self._options, binary=self._binary)
                self.servers.append(ending.enter_context(server))
            self._form(primaries)
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def _form(self, primaries: int) -> None:
        first, *others = self.servers
        for number, server in enumerate(self.servers[:primaries]):
            slots = range(SLOTS * number // primaries, SLOTS * (number + 1) // primaries)
            server.cli("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            server.cli("CLUSTER", "ADDSLOTS", *slots)
        for server in others:
            server.cli("CLUSTER", "MEET", HOST, first.port)
        wait_until(
            lambda: all(self._nodes_known(server) == len(self.servers) for server in self.servers),
            FORMED_WITHIN_S,
            "the servers of the Cluster to know each other",
        )
        for number, server in enumerate(self.servers[primaries:]):
            server.cli("CLUSTER", "REPLICATE", self.servers[number % primaries].identity)
        wait_until(
            lambda: (
                self.is_well()
                and all(
                    info(server, "replication")["master_link_status"] == "up" for server in self.servers[primaries:]
                )
            ),
            FORMED_WITHIN_S,
            "the Cluster to be well",
        )

    @staticmethod
    def _nodes_known(server: ClusterServer) -> int:
        return int(_said(server)["cluster_known_nodes"])

    def is_well(self) -> bool:
        """Every server that runs says so, and each knows as many replicas as there are."""
        return all(_said(server)["cluster_state"] == "ok" for server in self.running())

    def running(self) -> list[ClusterServer]:
        return [server for server in self.servers if server.running]

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'{HOST}:{server.port}' for server in self.servers[:3])}"

    def primary_of(self, slot: int) -> ClusterServer:
        """As the servers that run see it."""
        for first, last, primary, *_ in _slots(self.running()[0]):
            if first <= slot <= last:
                return next(server for server in self.servers if server.port == primary[1])
        raise ServerError(f"nobody has slot {slot}")

    def wait_for_another(self, than: ClusterServer, slot: int) -> ClusterServer:
        def another() -> bool:
            owners = {
                primary[1]
                for server in self.running()
                for first, last, primary, *_ in _slots(server)
                if first <= slot <= last
            }
            return len(owners) == 1 and than.port not in owners and self.is_well()

        wait_until(another, FAILED_OVER_WITHIN_S, f"another primary of slot {slot}")
        return self.primary_of(slot)

    def move_slot(self, slot: int, to: ClusterServer, batch: int = 10) -> int:
        """As `redis-cli --cluster reshard` does it. Returns how many keys were moved."""
        source = self.primary_of(slot)
        to.cli("CLUSTER", "SETSLOT", slot, "IMPORTING", source.identity)
        source.cli("CLUSTER", "SETSLOT", slot, "MIGRATING", to.identity)
        moved = 0
        while keys := source.cli("CLUSTER", "GETKEYSINSLOT", slot, batch):
            source.cli("MIGRATE", HOST, to.port, "", 0, 5000, "KEYS", *keys)
            moved += len(keys)
        for server in (to, source, *(each for each in self.primaries() if each not in (to, source))):
            server.cli("CLUSTER", "SETSLOT", slot, "NODE", to.identity)
        return moved

    def primaries(self) -> list[ClusterServer]:
        ports = {primary[1] for _, _, primary, *_ in _slots(self.running()[0])}
        return [server for server in self.servers if server.port in ports]

    def cli(self, *words: str | bytes | int | float) -> Any:
        """A command whose first argument is its key."""
        key = words[1]
        return self.primary_of(key_slot(key if isinstance(key, bytes) else str(key).encode())).cli(*words)


def _said(server: ClusterServer) -> dict[str, Any]:
    said = server.cli("CLUSTER", "INFO")
    if isinstance(said, dict):
        return {_text(name): _number(_text(value)) for name, value in said.items()}
    return {
        name: _number(value) for name, _, value in (line.partition(":") for line in _text(said).splitlines() if line)
    }


def _number(text: str) -> Any:
    return int(text) if text.isdigit() else text


def _slots(server: ClusterServer) -> Iterable[Any]:
    with redis.Redis(host=HOST, port=server.port, socket_timeout=PATIENCE_S) as client:
        client.set_response_callback("CLUSTER SLOTS", lambda answer, **_: answer)
        answer: list[Any] = client.execute_command("CLUSTER SLOTS")
    return answer
