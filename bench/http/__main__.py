"""`python -m bench.http`: posts by every client in turn, round after round; then the table and why it decided.

Exit code 1 only when a client lost or repeated a post, or could not be measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import trustme

from bench.http.posting import AT_ONCE, BODY_BYTES
from bench.http.receiver import HOST
from bench.pages import prose
from bench.runs import chosen, interleaved, machine_facts
from bench.servers import ROOT, BenchError
from bench.throughput.report import TIMES

DEFAULT_OUT = ROOT / "docs" / "measured"
POSTS = 20_000
QUICK_POSTS = 2_000
WITHIN_S = 120.0


class Lane(NamedTuple):
    key: str
    title: str
    client: str
    tls: bool


LANES = [
    Lane("aiohttp", "aiohttp", "aiohttp", False),
    Lane("pycurl", "pycurl, multi, in asyncio", "pycurl", False),
    Lane("bare", "pycurl, multi, its own loop", "bare", False),
    Lane("ours", "nsqdigest.base.http", "ours", False),
    Lane("aiohttp-tls", "aiohttp, TLS 1.3", "aiohttp", True),
    Lane("pycurl-tls", "pycurl, multi, in asyncio, TLS 1.3", "pycurl", True),
    Lane("ours-tls", "nsqdigest.base.http, TLS 1.3", "ours", True),
]

WHY = """
A digest costs the daemon some tens of microseconds before it is posted, so the client decides how many a core can
deliver. It has to be fast, and small enough that every promise about it has a test.

**What a sink needs**: connections of its own, with a limit; one time-out for a whole post and one for connecting; a
verdict by the status alone, so that a slow or endless body changes nothing and is not read; no redirects, cookies,
proxies or compressed answers; an address that the caller chose (a name that was checked cannot lead elsewhere a
moment later); TLS with the machine's authorities; errors whose text holds neither the answer nor the path of the URL.

**aiohttp** has nearly all of that, for the CPU in the table: URL, request, response, timers and streams are made anew
for each post. It stays for nsqlookupd, for nsqd's HTTP and for the daemon's own pages, where a request is rare.

**pycurl** costs least with a loop of its own and nothing else in the process (*bare*). The daemon needs it inside
asyncio, by callbacks for sockets and timers (*pycurl*), and there it costs several times as much as our client. It
looks up names without the daemon's resolver and brings a TLS library and authorities of its own. It would bring
HTTP/2.

**HTTP/2** is left out. Receivers of webhooks speak HTTP/1.1; with a few kept connections no post waits for another.
It would be another client (h2, libcurl), for receivers far away that allow few connections.

**Clients in Rust** (pyreqwest, rnet, primp) gained nothing beside aiohttp when they were tried, httpx and niquests
took five to eight times its CPU; they are not in the table.

**nsqdigest.base.http** is asyncio's own transport and llhttp (by httptools: the parser of Node.js, and of uvicorn).
Written here is the keeping of connections, the time-outs and the bounds, in about 900 lines, tested against receivers
that drip, flood, break off, reset, or speak out of turn. One detail halved its CPU: asyncio's usual read asks for 256
KiB, which glibc maps and unmaps again for each answer; here all connections of a client read into one buffer.
"""

NOTES = [
    f"{POSTS:,} posts of {BODY_BYTES:,} bytes a round, {AT_ONCE} at a time, with the headers of a signed digest. Each "
    "client has a process of its own, one after the other; the receiver, an asyncio.Protocol that returns 200, has "
    "another.",
    "CPU is user and system time of the client's process behind the first 5 % of the posts. It is what to compare: the "
    "rates of two processes on a shared machine move with whatever else runs, and the receiver's CPU bounds them.",
    "aiohttp is set up as the webhook sink had it. *bare* is pycurl with its own loop, one thread and no asyncio.",
    "The receiver counts posts and different webhook-ids: each must be the number that was posted.",
]


class Round(NamedTuple):
    posts_per_s: float
    cpu_us: float

    def __str__(self) -> str:
        return f"{self.posts_per_s:>10,.0f} posts/s   {self.cpu_us:6.1f} µs of CPU a post"


class Receiver(NamedTuple):
    child: subprocess.Popen[str]
    port: int
    ca_file: str

    def counts(self) -> tuple[int, int]:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        posts, ids = self.child.stdout.readline().split()
        return int(posts), int(ids)


@contextmanager
def receiver(folder: Path, tls: bool) -> Iterator[Receiver]:
    files: list[str] = []
    ca_file = ""
    if tls:
        authority = trustme.CA()
        leaf = authority.issue_cert(HOST)
        ca_file = str(folder / "ca.pem")
        authority.cert_pem.write_to_path(ca_file)
        files = [str(folder / "cert.pem"), str(folder / "key.pem")]
        leaf.cert_chain_pems[0].write_to_path(files[0])
        leaf.private_key_pem.write_to_path(files[1])
    command = [sys.executable, "-m", "bench.http.receiver", *files]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            yield Receiver(child, int(child.stdout.readline()), ca_file)
        finally:
            child.kill()


def run_round(lane: Lane, to: Receiver, posts: int) -> Round:
    url = f"{'https' if lane.tls else 'http'}://{HOST}:{to.port}/hook"
    command = [sys.executable, "-m", "bench.http.posting", lane.client, url, str(posts), *filter(None, [to.ca_file])]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=WITHIN_S)
    if done.returncode:
        raise BenchError(f"{lane.key}: {done.stderr.strip().splitlines()[-1]}")
    if to.counts() != (posts, posts):
        raise BenchError(f"{lane.key}: posts were lost or came twice")
    measured = json.loads(done.stdout)
    counted = posts * 0.95
    return Round(counted / measured["seconds"], measured["cpu_s"] / counted * 1e6)


def spread(values: Sequence[float], form: str) -> str:
    return f"{median(values):{form}} ({min(values):{form}}–{max(values):{form}})"  # noqa: RUF001


def ratio(results: Mapping[str, Sequence[Round]], one: str, other: str) -> str:
    pairs = list(zip(results[one], results[other], strict=True))
    faster = [a.posts_per_s / b.posts_per_s for a, b in pairs]
    cheaper = [b.cpu_us / a.cpu_us for a, b in pairs]
    return (
        f"- {one}: {spread(faster, '.1f')} {TIMES} the posts of {other}; "
        f"a post of {other} takes {spread(cheaper, '.1f')} {TIMES} its CPU"
    )


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.strip().split("\n\n"):
        yield from (prose(paragraph), "")


def markdown(results: Mapping[str, Sequence[Round]], machine: Mapping[str, str]) -> str:
    shown = [lane for lane in LANES if lane.key in results]
    lines = [
        "# The HTTP client, measured",
        "",
        "Written by `make bench-http`. Medians, and in brackets the smallest and the largest of the rounds.",
        "",
        "| lane | client | posts/s | CPU of the client, µs/post |",
        "|---|---|--:|--:|",
    ]
    for lane in shown:
        rates = spread([one.posts_per_s for one in results[lane.key]], ",.0f")
        cpu = spread([one.cpu_us for one in results[lane.key]], ".1f")
        lines.append(f"| {lane.key} | {lane.title} | {rates} | {cpu} |")
    pairs = [
        ("ours", "aiohttp"),
        ("ours", "pycurl"),
        ("ours", "bare"),
        ("ours-tls", "aiohttp-tls"),
        ("ours-tls", "pycurl-tls"),
    ]
    lines += ["", *(ratio(results, *pair) for pair in pairs if set(pair) <= set(results))]
    lines += ["", "## Why this client", "", *_paragraphs(WHY)]
    lines += ["## Notes", "", *(f"- {prose(words, 2)}" for words in NOTES)]
    numbers = range(1, max(map(len, results.values())) + 1)
    lines += ["", "## Every round", "", f"| posts/s in round | {' | '.join(map(str, numbers))} |"]
    lines.append("|---|" + "--:|" * len(numbers))
    for lane in shown:
        lines.append(f"| {lane.key} | " + " | ".join(f"{one.posts_per_s:,.0f}" for one in results[lane.key]) + " |")
    lines += ["", "## Machine and versions", "", *(f"- {name}: {value}" for name, value in machine.items())]
    return "\n".join(lines) + "\n"


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.http", description=__doc__)
    options.add_argument("--rounds", type=int, default=7, help="how often each client is run (default 7)")
    options.add_argument("--lanes", default="", help=f"of {', '.join(lane.key for lane in LANES)}; default all")
    options.add_argument("--quick", action="store_true", help="one round of a tenth of the posts")
    options.add_argument("--out", type=Path, help="folder of the table (default: docs/measured, for a whole run only)")
    given = options.parse_args()
    rounds, posts = (1, QUICK_POSTS) if given.quick else (given.rounds, POSTS)
    try:
        lanes = chosen(LANES, given.lanes)
        facts = machine_facts(rounds, (), ("aiohttp", "httptools", "pycurl"))
        del facts["servers"]
        with (
            tempfile.TemporaryDirectory(prefix="nsqdigest-bench-") as folder,
            receiver(Path(folder), tls=False) as plain,
            receiver(Path(folder), tls=True) as secure,
        ):
            runs = {lane.key: partial(run_round, lane, secure if lane.tls else plain, posts) for lane in lanes}
            results = interleaved([lane.key for lane in lanes], rounds, runs, str)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    text = markdown(results, facts)
    print(f"\n{text}")
    out = given.out or (DEFAULT_OUT if lanes == LANES and rounds >= 3 else None)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / "http.md").write_text(text, "utf-8")
        print(f"written: {out / 'http.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
