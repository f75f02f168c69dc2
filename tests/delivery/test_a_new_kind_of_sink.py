"""A new kind of sink is its own file, one line in the table and its test. The kind here stands in no module of the
package: that it is read, checked, shown, built and looked at proves that nothing else knows kinds by name.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nsqdigest.base.errors import ConfigError, Mistake
from nsqdigest.base.findings import Finding, State
from nsqdigest.base.reasons import Verdict
from nsqdigest.config import Config, SinkSettings, example, parse_text, texts
from nsqdigest.config.options import REQUIRED, Option, Tables
from nsqdigest.config.problems import Spot
from nsqdigest.config.readers import Text, Whole
from nsqdigest.daemon.life import Daemon
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.kind import Reach, SinkContext, SinkKind, SinkKinds
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.doctor import examination
from support.daemon import toml
from support.ports import HOST
from support.servers import Nsqd
from support.waiting import until

# -- the kind: what a file in delivery/sinks would hold


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSink(SinkSettings):
    folder: str
    files: int


class Folder:
    def __init__(self, settings: FolderSink) -> None:
        self._folder = Path(settings.folder)

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        (self._folder / f"{digest.id}.json").write_bytes(digest.body)
        return Outcome(Verdict.DELIVERED)

    async def close(self) -> None:
        pass


def not_the_root(values: dict[str, Any], spot: Spot) -> None:
    if values.get("folder") == "/":
        (spot / "folder").problem("is the root of this machine", "name a folder below it")


def one_sink_a_folder(tables: Tables, root: Spot) -> None:
    folders = [sink.get("folder") for sink in tables.sinks.values()]
    for name, sink in tables.sinks.items():
        if folders.count(sink.get("folder")) > 1:
            (root / "sinks" / name / "folder").warning("is the folder of another sink, too")


async def look(sink: FolderSink, reach: Reach) -> list[Finding]:
    is_there = await reach.in_a_thread(Path(sink.folder).is_dir)
    return [Finding(sink.name, State.OK if is_there else State.FAIL, sink.folder, "" if is_there else "make it")]


def build(settings: FolderSink, context: SinkContext) -> Folder:
    return Folder(settings)


FOLDER = SinkKind(
    name="folder",
    settings=FolderSink,
    options=(
        Option("folder", Text(texts.whole_path), REQUIRED, "one file for each digest", "/var/lib/digests"),
        Option("files", Whole(1, 1000), 100, "at most"),
    ),
    rules=(not_the_root,),
    rules_of_file=(one_sink_a_folder,),
    example="shelf",
    doc="writes a file for each digest",
    build=build,
    look=look,
)

# -- the line in the table

WITH_IT: SinkKinds = {**KINDS, FOLDER.name: FOLDER}

# -- the test

TOPIC = "events"
ROUTE = {"name": "events", "topic": TOPIC, "timeline": "{user}", "sink": "shelf"}


def text_of(nsqd: str = f"{HOST}:4150", redis_url: str = "redis://localhost/0", **sink: Any) -> str:
    tables: dict[str, dict[str, Any]] = {
        "nsq": {"nsqd_tcp_addresses": [nsqd]},
        "redis": {"url": redis_url, "namespace": "test"},
        "sinks.shelf": {"type": "folder", "folder": "/digests", **sink},
        "admin": {"listen": ""},
    }
    return toml(tables, [ROUTE])


def read(text: str, **environ: str) -> Config:
    return parse_text(text, "f.toml", environ, WITH_IT)


def problem(text: str, kinds: SinkKinds = WITH_IT) -> Mistake:
    with pytest.raises(ConfigError) as raised:
        parse_text(text, "f.toml", {}, kinds)
    (only,) = raised.value.problems
    return only


@pytest.fixture
def garbage_collector() -> Iterator[None]:
    """A daemon tunes that of its process."""
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


@pytest.mark.unit
def test_the_file_is_read_with_its_options_and_those_of_every_sink() -> None:
    sink = read(text_of(concurrency=2)).sinks["shelf"]
    assert isinstance(sink, FolderSink)
    assert (sink.type, sink.folder, sink.files) == ("folder", "/digests", 100)
    assert (sink.concurrency, sink.timeout_ms) == (2, 15_000)


@pytest.mark.unit
def test_the_environment_sets_its_options() -> None:
    sink = read(text_of(), NSQDIGEST__SINKS__SHELF__FILES="7").sinks["shelf"]
    assert isinstance(sink, FolderSink)
    assert sink.files == 7


@pytest.mark.unit
@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        ({"fiels": 5}, 'sinks.shelf.fiels: unknown key; did you mean "files"?'),
        ({"files": 5000}, "sinks.shelf.files: 5000 is too large; write 1000 or less"),
        ({"folder": "/"}, "sinks.shelf.folder: is the root of this machine; name a folder below it"),
        ({"retry_cap": "10ms"}, "sinks.shelf.retry_cap: retry_cap is shorter than retry_base; "),
        ({"type": "foldr"}, 'sinks.shelf.type: "foldr" is not a type of sink; did you mean "folder"?'),
        ({"type": "pigeon"}, 'not a type of sink; write "webhook", "email", "nsq", "log" or "folder"'),
    ],
)
def test_a_mistake_is_refused_with_the_remedy(sink: dict[str, Any], expected: str) -> None:
    assert expected in problem(text_of(**sink))


@pytest.mark.unit
def test_a_rule_over_the_sinks_of_the_kind_reports_each() -> None:
    twice = text_of() + toml({"sinks.other": {"type": "folder", "folder": "/digests"}})
    advice = [warning for warning in read(twice).warnings if "folder of another" in warning]
    assert len(advice) == 2


@pytest.mark.unit
def test_the_example_file_has_it_and_loads() -> None:
    text = example.text(WITH_IT)
    assert '[sinks.shelf]\ntype = "folder"' in text
    assert isinstance(read(text).sinks["shelf"], FolderSink)


@pytest.mark.integration
@pytest.mark.usefixtures("garbage_collector")
async def test_a_daemon_delivers_to_it(nsqd: Nsqd, redis_url: str, tmp_path: Path) -> None:
    host, port = nsqd.tcp_address
    daemon = Daemon(read(text_of(f"{host}:{port}", redis_url, folder=str(tmp_path))), WITH_IT)
    await daemon.start()
    nsqd.publish(TOPIC, b'{"user":"u"}')
    await until(lambda: [*tmp_path.glob("*.json")], 10, "a digest in the folder")
    await daemon.drain()
    (file,) = tmp_path.glob("*.json")
    assert json.loads(file.read_bytes())["data"]["sink"] == "shelf"


@pytest.mark.integration
async def test_the_doctor_looks_at_it(nsqd: Nsqd, redis_url: str, tmp_path: Path) -> None:
    host, port = nsqd.tcp_address
    for folder, state in ((tmp_path, State.OK), (tmp_path / "missing", State.FAIL)):
        config = read(text_of(f"{host}:{port}", redis_url, folder=str(folder)))
        found = {part.name: part.findings for part in await examination.examine(config, WITH_IT)}
        assert [(each.what, each.state) for each in found["sink"]] == [("shelf", state)]
