"""Files that a configuration names: whatever stands there instead of a plain file is a problem with its place and its
remedy, at once, and never gets into memory."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest

from nsqdigest.base import files
from nsqdigest.base.files import FileProblem
from nsqdigest.config import ConfigError, load
from nsqdigest.delivery.sinks.table import KINDS
from support.daemon import run_command

pytestmark = pytest.mark.unit

MAIL = 'type = "email"\nhost = "mail.example.com"\nfrom = "a@example.com"\nto = "b@example.com"\n'
HOOK = 'type = "webhook"\nurl = "https://example.com/hook"\n'
REDIS = '[redis]\nurl = "rediss://h"\n'
OPTIONS = {
    "nsq.tls.ca_file": ("", '[nsq.tls]\nca_file = "{}"\n'),
    "nsq.tls.cert_file": ("", '[nsq.tls]\ncert_file = "{}"\n'),
    "redis.ca_file": ("", REDIS + 'ca_file = "{}"\n'),
    "redis.cert_file": ("", REDIS + 'cert_file = "{}"\n'),
    "sinks.out.ca_file": (MAIL + 'ca_file = "{}"\n', ""),
    "sinks.out.text": (MAIL + 'text = "file:{}"\n', ""),
    "sinks.out.body": (HOOK + 'body = "file:{}"\n', ""),
    "sinks.out.secret": (HOOK + 'secret = "file:{}"\n', ""),
    "admin.token": ("", '[admin]\ntoken = "file:{}"\n'),
    "redis.url": ("", '[redis]\nurl = "file:{}"\n'),
}
INSTEAD = {
    "pipe": "is not a plain file; name one: no pipe, no device",
    "/dev/zero": "is not a plain file; name one: no pipe, no device",
    "folder": "is a folder; name a file in it",
    "large": "KiB; name a smaller file",
    "missing": "is not there; make it; a relative path starts at the folder of the configuration",
    "pipe/x": "cannot be read: Not a directory; make it readable for this user",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "large").open("wb") as large:
        large.truncate(8 << 30)
    (tmp_path / "large").chmod(0o600)
    return tmp_path


def written(folder: Path, option: str, name: str) -> Path:
    sink, tables = (text.format(name) for text in OPTIONS[option])
    path = folder / "nsqdigest.toml"
    text = "[sinks.out]\n" + (sink or 'type = "log"\n') + '[[routes]]\ntopic = "e"\ntimeline = "{u}"\nsink = "out"\n'
    path.write_text('[nsq]\nnsqd_tcp_addresses = ["h:4150"]\n' + text + tables, encoding="utf-8")
    return path


@pytest.mark.parametrize("instead", INSTEAD)
@pytest.mark.parametrize("option", OPTIONS)
def test_what_is_no_plain_file_is_a_problem_of_its_option(folder: Path, option: str, instead: str) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigError) as caught:
        load(written(folder, option, instead), {}, KINDS)
    (problem,) = caught.value.problems
    assert problem.path == option
    assert f"{instead}, which " in problem.problem or f"{instead} " in problem.problem
    assert f"{problem.problem}; {problem.remedy}".endswith(INSTEAD[instead])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 << 10


@pytest.mark.integration
@pytest.mark.parametrize("instead", ["pipe", "/dev/zero"])
def test_check_answers_at_once(folder: Path, instead: str) -> None:
    began_s = time.process_time()
    done = run_command("check", "-c", str(written(folder, "nsq.tls.ca_file", instead)))
    assert (done.returncode, "is not a plain file" in done.stderr) == (78, True)
    assert time.process_time() - began_s < 10


@pytest.mark.parametrize("instead", ["pipe", "/dev/zero", "large"])
def test_the_configuration_itself_is_a_plain_file_of_bounded_size(folder: Path, instead: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(folder / instead, {}, KINDS)
    assert INSTEAD[instead] in str(caught.value)


def test_a_pipe_that_the_shell_has_opened_may_hold_the_configuration(folder: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, written(folder, "redis.url", "x").read_bytes().replace(b'[redis]\nurl = "file:x"', b""))
    os.close(writing)
    try:
        assert load(Path(f"/dev/fd/{reading}"), {}, KINDS).routes
    finally:
        os.close(reading)


def test_a_file_has_its_contents_and_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * files.LARGEST_BYTES)
    path.chmod(0o640)
    assert files.read(path) == files.File(b"x" * files.LARGEST_BYTES, 0o640)
    with path.open("ab") as more:
        more.write(b"x")
    with pytest.raises(FileProblem, match=r"is larger than 1,024 KiB"):
        files.read(path)


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_a_file_that_this_user_may_not_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    path.chmod(0)
    with pytest.raises(FileProblem, match="cannot be read: Permission denied"):
        files.read(path)


def test_what_the_kernel_makes_up_is_a_plain_file_too() -> None:
    """Its size is 0 until somebody reads it."""
    assert files.read("/proc/self/status").data.startswith(b"Name:")
