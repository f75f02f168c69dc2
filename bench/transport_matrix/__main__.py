"""`python -m bench.transport_matrix`: every way to nsqd, for this product and for pynsq, as a table of what passes.

Each cell is a consumer process against a real nsqd, several times over. A cell passes when every message came in every
run, byte for byte. Exit code 1 where this product fails in a cell, or accepts what it should refuse.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import random
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.servers import ROOT, BenchError
from bench.transport_matrix.consumer import CHANNEL, digest_of
from support.auth_server import EVERYTHING, AuthServer
from support.bodies import mixed_bodies
from support.certificates import Certificates, Pair
from support.servers import Nsqd

OUT = ROOT / "docs" / "measured" / "transport-matrix.md"
CLIENTS = ("nsqdigest", "pynsq")
LAYERS = ("plain", "TLS 1.2", "TLS 1.3", "mutual TLS")
COMPRESSIONS = ("none", "snappy", "deflate")
REFUSALS = {
    "wrong_host": "a certificate for another host",
    "expired": "a certificate that has expired",
    "self_signed": "a certificate signed by itself",
    "strange": "a certificate of another authority",
    "": "no TLS at all, where TLS is asked for",
}
MIXED, SMALL = "10 B to 1 MiB", "10 to 300 B"
MIXED_BYTES = 4 << 20
SMALL_MESSAGES = 500
SECRET = "correct horse"
PATIENCE_S = 4.0
START_S = 30.0


@dataclass(frozen=True, slots=True)
class Run:
    received: int
    is_exact: bool
    complaint: str


class Site:
    """The certificates, the auth server, and one nsqd at a time."""

    def __init__(self, folder: Path, auth_server: AuthServer) -> None:
        self._folder = folder
        self._auth_server = auth_server
        self._numbers = itertools.count(1)
        self.certificates = Certificates(folder / "certificates")

    @contextmanager
    def nsqd(self, shown: Pair | None, layer: str, *, auth: bool) -> Iterator[Nsqd]:
        options = []
        if shown is not None:
            options += [f"--tls-cert={shown.cert_file}", f"--tls-key={shown.key_file}"]
        if layer == "TLS 1.3":
            options.append("--tls-min-version=tls1.3")
        if layer == "mutual TLS":
            options += [f"--tls-root-ca-file={self.certificates.ca_file}", "--tls-client-auth-policy=require-verify"]
            options.append("--tls-required=tcp-https")
        if auth:
            options.append(f"--auth-http-address={self._auth_server.address}")
        with Nsqd(self._folder / f"nsqd-{next(self._numbers)}", *options) as server:
            yield server

    def run(self, client: str, nsqd: Nsqd, layer: str, compression: str, *, auth: bool, bodies: list[bytes]) -> Run:
        topic = f"cell-{next(self._numbers)}"
        nsqd.create_channel(topic, CHANNEL)
        nsqd.publish_many(topic, bodies)
        host, port = nsqd.tcp_address
        mutual, own = layer == "mutual TLS", self.certificates.client
        files = {
            "ca_file": str(self.certificates.ca_file),
            "cert_file": str(own.cert_file) if mutual else "",
            "key_file": str(own.key_file) if mutual else "",
        }
        cell: dict[str, Any] = {
            "host": host, "port": port, "topic": topic, "messages": len(bodies), "patience_s": PATIENCE_S,
            "compression": compression, "secret": SECRET if auth else "", "tls": None if layer == "plain" else files,
            "newest": "TLSv1.2" if layer == "TLS 1.2" else "TLSv1.3",
        }  # fmt: skip
        command = [sys.executable, "-W", "ignore", "-m", "bench.transport_matrix.consumer", client, json.dumps(cell)]
        ended = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=START_S + PATIENCE_S, check=False
        )
        if ended.returncode != 0:
            raise BenchError(f"the consumer of {client} ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
        said = json.loads(ended.stdout.splitlines()[-1])
        return Run(said["received"], said["digest"] == digest_of(bodies), said["complaint"])


def verdict(runs: list[Run], messages: int) -> str:
    passed = sum(run.is_exact for run in runs)
    if passed == len(runs):
        return "passes"
    failed = next(run for run in runs if not run.is_exact)
    got = "nothing comes" if failed.received == 0 else f"{failed.received} of {messages} come"
    often = "" if passed == 0 else f" in {len(runs) - passed} of {len(runs)} runs"
    return f"**{got}{often}**"


def backlogs() -> dict[str, list[bytes]]:
    drawn = random.Random("small")
    small = [b"%08d" % number + drawn.randbytes(drawn.randint(2, 292)) for number in range(SMALL_MESSAGES)]
    return {MIXED: mixed_bodies("matrix", MIXED_BYTES), SMALL: small}


def matrix(site: Site, runs: int) -> tuple[list[str], bool]:
    columns = list(itertools.product(CLIENTS, backlogs().items()))
    heads = ["", "compression", "AUTH", *(f"{client}, {sizes}" for client, (sizes, _) in columns)]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    is_right = True
    for layer, compression, auth in itertools.product(LAYERS, COMPRESSIONS, (False, True)):
        said = []
        with site.nsqd(None if layer == "plain" else site.certificates.server, layer, auth=auth) as nsqd:
            for client, (sizes, bodies) in columns:
                done = [site.run(client, nsqd, layer, compression, auth=auth, bodies=bodies) for _ in range(runs)]
                said.append(verdict(done, len(bodies)))
                complaints = {run.complaint for run in done if not run.is_exact}
                print(f"{layer}, {compression}, AUTH {auth}: {client}, {sizes}: {said[-1]}", *complaints, flush=True)
                is_right &= client != "nsqdigest" or said[-1] == "passes"
        rows.append(f"| {layer} | {compression} | {'yes' if auth else 'no'} | {' | '.join(said)} |")
    return rows, is_right


def refusals(site: Site) -> tuple[list[str], bool]:
    bodies = mixed_bodies("refusals", 1 << 10)
    rows = ["| what nsqd shows | nsqdigest | pynsq |", "|---|---|---|"]
    is_right = True
    for kind, what in REFUSALS.items():
        said = {}
        shown = getattr(site.certificates, kind) if kind else None
        with site.nsqd(shown, "TLS 1.2", auth=False) as nsqd:
            for client in CLIENTS:
                run = site.run(client, nsqd, "TLS 1.2", "none", auth=False, bodies=bodies)
                said[client] = "refused" if run.received == 0 else "**accepted**"
                print(f"{what}: {client}: {said[client]}", run.complaint)
        is_right &= said["nsqdigest"] == "refused"
        rows.append(f"| {what} | {said['nsqdigest']} | {said['pynsq']} |")
    return rows, is_right


def page(runs: int, cells: list[str], refused: list[str]) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("pynsq", "tornado", "python-snappy", "cramjam"))
    sizes = " or ".join(
        f"{len(bodies)} messages of {name} ({sum(map(len, bodies)) / 2**20:.1f} MiB)"
        for name, bodies in backlogs().items()
    )
    lines = [
        "# Ways to nsqd: what passes",
        "",
        f"Each cell: {sizes} from a real nsqd to one consumer, {runs} times.",
        "*Passes*: every message came in every run, byte for byte. Written by `python -m bench.transport_matrix`.",
        "",
        f"Measured {datetime.now(UTC):%Y-%m-%d}; nsqd 1.3.0, Python {platform.python_version()}, "
        f"{ssl.OPENSSL_VERSION}, {packages}.",
        "",
        *cells,
        "",
        "pynsq is used as its documentation says: its `Reader`, with `tls_options` that name the authority (and the",
        "client's certificate). For TLS 1.3 they hold an `ssl_version` too, since its own default is TLS 1.2 alone.",
        "",
        "## What is refused",
        "",
        "With the authority of the tests named, and TLS 1.2, so that pynsq can keep its default.",
        "",
        *refused,
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.transport_matrix", description=__doc__)
    options.add_argument("--runs", type=int, default=3, help="of each cell")
    options.add_argument("--out", type=Path, default=OUT)
    given = options.parse_args()
    allowed = {SECRET: EVERYTHING}
    with tempfile.TemporaryDirectory() as folder, AuthServer(allowed) as auth_server:
        site = Site(Path(folder), auth_server)
        cells, all_pass = matrix(site, given.runs)
        refused, all_refused = refusals(site)
    given.out.write_text(page(given.runs, cells, refused), encoding="utf-8")
    print(f"written: {given.out}")
    return 0 if all_pass and all_refused else 1


if __name__ == "__main__":
    sys.exit(main())
