"""What is tested is the installed package, and it is complete."""

from __future__ import annotations

import importlib.resources
import os
import tomllib
from pathlib import Path

import pytest

import nsqdigest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[1]
TREE = ROOT / "nsqdigest"
INSTALLED = Path(str(importlib.resources.files("nsqdigest")))


def data_files(package: Path) -> set[str]:
    """Everything that is not Python code, as paths within the package."""
    return {
        path.relative_to(package).as_posix()
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc"}
    }


@pytest.mark.skipif(
    os.environ.get("NSQDIGEST_TEST_INSTALLED") != "1", reason="only `make test` promises an installed wheel"
)
def test_the_installed_package_is_tested_and_not_the_tree() -> None:
    package = Path(nsqdigest.__file__).parent
    assert package.parent.name == "site-packages"
    assert package.resolve() != TREE


def test_every_lua_script_is_in_the_package() -> None:
    wanted = {path.relative_to(TREE).as_posix() for path in TREE.rglob("*.lua")}
    assert wanted
    assert wanted <= data_files(INSTALLED)


def test_no_data_file_is_left_out_of_the_package() -> None:
    assert data_files(TREE) - data_files(INSTALLED) == set()


def test_the_package_says_that_it_is_typed() -> None:
    assert (INSTALLED / "py.typed").is_file()


def test_what_an_extra_needs_is_tested_as_well() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for extra, requirements in project["project"]["optional-dependencies"].items():
        assert set(requirements) <= set(project["dependency-groups"]["dev"]), extra
