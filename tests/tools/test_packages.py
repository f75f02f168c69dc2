"""sdist and wheel: built one from the other, complete, and of use in an environment that knows nothing else of us."""

from __future__ import annotations

import email
import email.message
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

if TYPE_CHECKING:
    from scripts import package_readme, requirements
else:
    from support.tree import load

    package_readme = load("scripts.package_readme")
    requirements = load("scripts.requirements")

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def ran(*words: str | Path, cwd: Path, **environ: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NSQDIGEST", "PYTHON"))}
    done = subprocess.run(words, cwd=cwd, env=clean | environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(kind: str, source: Path, folder: Path) -> Path:
    ran(sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", folder, cwd=source)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from what the sdist has, as distributions and `pip install` from an sdist do."""
    source = tmp_path_factory.mktemp("source")
    with tarfile.open(sdist) as archive:
        archive.extractall(source, filter="data")
    (unpacked,) = source.iterdir()
    return built("wheel", unpacked, tmp_path_factory.mktemp("wheel"))


def tracked(folder: str) -> set[str]:
    """Files of the source, without what Python and tools leave there."""
    files = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in files}


def test_the_sdist_has_all_that_its_tests_need_and_nothing_of_a_machine(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    for folder in ("nsqdigest", "tests", "config", "docs", "scripts"):
        assert tracked(folder) <= names
    assert {"LICENSE", "CHANGELOG.md", "Containerfile", "Makefile", "PKG-INFO"} <= names
    assert not {name for name in names if re.match(r"\.(venv|servers|git/)|site/|dist/", name)}
    assert all(member.isfile() or member.isdir() for member in members), "no links out of it"
    assert sdist.stat().st_size < 5 << 20


def test_the_wheel_has_the_package_its_licence_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    ours = {name for name in names if name.startswith("nsqdigest/")}
    assert ours == tracked("nsqdigest")
    assert any(name.endswith(".lua") for name in ours)
    assert "nsqdigest/py.typed" in ours
    others = {name.partition("/")[2] for name in names - ours}
    assert others == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return email.message_from_bytes(archive.read(name))


@pytest.mark.parametrize("group", ["runtime", "extras", "build"])
def test_locked_versions_are_what_the_project_allows_and_have_hashes(group: str) -> None:
    locked = {}
    for name in ("runtime", "build"):
        for entry in re.split(r"\n(?=\S)", (ROOT / "scripts" / "locked" / f"{name}.txt").read_text("utf-8"))[1:]:
            requirement = Requirement(entry.partition("\\")[0].strip())
            assert "--hash=sha256:" in entry
            (pin,) = requirement.specifier
            locked[requirement.name] = pin.version
    for wanted in map(Requirement, requirements.requirements([group], at_lowest=False)):
        assert locked[wanted.name] in wanted.specifier, f"{wanted}: run `make lock`"


def test_a_lower_bound_becomes_the_version_under_test() -> None:
    assert [requirements.lowest(each) for each in ("a>=1.2", "b>=1.2,<2")] == ["a==1.2", "b==1.2"]
    with pytest.raises(SystemExit, match="not of the form"):
        requirements.lowest("a==1.2")


def test_its_description_has_no_link_that_leads_nowhere(wheel: Path) -> None:
    text = metadata(wheel).get_payload()
    assert isinstance(text, str)
    assert text.lstrip().startswith("# nsqdigest")
    assert all(target.startswith("https://") for target in re.findall(r"\]\(([^)]*)\)", text))


def test_links_of_the_description_lead_to_the_source_where_it_is_known() -> None:
    readme = "<!-- x -->\n![a picture](a.svg), [a page](docs/a.md), [NSQ](https://nsq.io), [up](#top)"
    assert package_readme.description(readme) == "*a picture*, a page, [NSQ](https://nsq.io), up"
    assert package_readme.description(readme, "https://code.test/") == (
        "![a picture](https://code.test/a.svg), [a page](https://code.test/docs/a.md), [NSQ](https://nsq.io), up"
    )


def test_it_says_which_pythons(wheel: Path) -> None:
    found = metadata(wheel)
    least = found["Requires-Python"].removeprefix(">=")
    classifiers = found.get_all("Classifier") or []
    named = [each.rpartition(" ")[2] for each in classifiers if re.search(r":: 3\.\d+$", each)]
    assert named[0] == least
    assert PROJECT["scripts"] == {"nsqdigest": "nsqdigest.cli:main"}


def test_from_the_wheel_alone_there_is_a_file_that_passes(wheel: Path, tmp_path: Path) -> None:
    """In an environment with what it depends on, and no source within reach."""
    home = tmp_path / "venv"
    venv.create(home, symlinks=True)
    ran(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", home / "bin" / "python", "install",
        "--no-deps", "--no-index", "--quiet", wheel, cwd=tmp_path)  # fmt: skip
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")  # ours comes before
    program = home / "bin" / "nsqdigest"
    where = ran(home / "bin" / "python", "-c", "import nsqdigest; print(nsqdigest.__file__)", cwd=tmp_path)
    assert where.startswith(str(site))
    assert ran(program, "--version", cwd=tmp_path) == ran(
        home / "bin" / "python", "-m", "nsqdigest", "-V", cwd=tmp_path
    )
    ran(program, "init", cwd=tmp_path)
    assert "nsqdigest.toml: ok" in ran(program, "check", cwd=tmp_path)
    ran(program, "init", "--all", "all.toml", cwd=tmp_path)
    assert "all.toml: ok" in ran(program, "check", "--no-secrets", "all.toml", cwd=tmp_path)
