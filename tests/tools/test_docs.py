"""The pages: they build without a warning, load nothing from elsewhere, and name what there is."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

from nsqdigest.base.log_sentences import SENTENCES
from nsqdigest.cli import cli
from nsqdigest.config.options import SECTIONS

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("**/*.md"))
IN_SOURCE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?:^|[`|&$]) *nsqdigest ((?:[a-z][a-z-]*)(?:[^\S\n]+[^`\n|#;&]*)?)", re.MULTILINE)
NAMES_OF_OPTIONS = re.compile(rf"`({'|'.join(SECTIONS)})\.([a-z_]+)`")


def named(paths: list[Path]) -> list[object]:
    return [pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in paths]


def anchors(path: Path) -> set[str]:
    """As viewers of the source make them of headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", named(IN_SOURCE))
def test_every_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    for target in LINK.findall(re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)):
        if re.match(r"https://", target):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


# -- what the pages name


def commands(text: str) -> Iterator[list[str]]:
    """Those in code: `nsqdigest dead replay --all --sink SINK` → its words."""
    code = "\n".join(re.findall(r"^ {4,}.*$|`[^`\n]+`", text, re.MULTILINE))
    for found in COMMAND.findall(code):
        yield found.replace("`", " ").split()


def test_every_command_and_option_that_a_page_names_exists() -> None:
    wrong = []
    for path in IN_SOURCE:
        for words in commands(path.read_text("utf-8")):
            command: click.Command = cli
            context = click.Context(cli)
            for word in words:
                if not isinstance(command, click.Group):
                    break
                command = command.get_command(context, word) or command
                if command is cli:
                    wrong.append(f"{path.name}: nsqdigest {' '.join(words)}")
                    break
            options = {name for parameter in command.params for name in (*parameter.opts, "--help", "-h")}
            wrong += [
                f"{path.name}: nsqdigest {' '.join(words)}: no {word}"
                for word in words
                if re.fullmatch(r"--?[a-z][a-z-]*", word) and command is not cli and word not in options
            ]
    assert wrong == []


def test_every_option_of_the_file_that_a_page_names_exists() -> None:
    wrong = {
        f"{path.name}: {section}.{option}"
        for path in IN_SOURCE
        for section, option in NAMES_OF_OPTIONS.findall(path.read_text("utf-8"))
        if option != "py"
        and f"{section}.{option}" not in SENTENCES  # an event of the log
        and option not in {known.key for known in SECTIONS[section].options}
        and f"{section}.{option}" not in SECTIONS
    }
    assert wrong == set()


# -- the site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "properdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


class Loads(HTMLParser):
    """Addresses that a browser asks for by itself when it shows the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {"link": ("href",), "form": ("action",)}.get(tag, ("src", "srcset", "data", "poster"))
        self.found += [value for name, value in attrs if name in names and value]


def test_the_site_loads_nothing_from_another_host(site: Path) -> None:
    pages = sorted(site.glob("**/*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        for address in Loads(page.read_text("utf-8")).found:
            assert not re.match(r"(?:[a-z]+:)?//", address), f"{page.name} loads {address}"
    for style in site.glob("**/*.css"):
        text = style.read_text("utf-8")
        assert not re.search(r"""(?:@import|url\()\s*["']?(?:[a-z]+:)?//""", text), style.name


def test_what_is_code_in_the_source_is_code_on_the_site(site: Path) -> None:
    """Also what stands in a list: Python-Markdown has rules of its own for that."""
    for path in PAGES:
        page = (site / path.relative_to(ROOT / "docs")).with_suffix(".html").read_text("utf-8")
        shown = html.unescape("\n".join(re.findall(r"<pre.*?>(.*?)</pre>", page, re.DOTALL)))
        source = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
        for line in re.findall(r"(?<=\n\n) {4,}(.*)$", source, re.MULTILINE):
            assert line in shown, f"{path.name}: {line}"
        assert "<p>|" not in page, f"{path.name}: a table that is none"
