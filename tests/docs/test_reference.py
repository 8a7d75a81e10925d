"""What is made by code is what the pages have, and pages hang together."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from docs.pages import ROOT, pages, text_of
from unbroken.errors import UnbrokenError
from unbroken.flow.settings import Settings
from unbroken_lab.docsgen.__main__ import PARTS, made
from unbroken_lab.docsgen.connectors import EXTRAS, MORE, connectors, described
from unbroken_lab.docsgen.marks import replaced
from unbroken_lab.docsgen.settings import GROUPS

DOCS = ROOT / "docs"
LINK = re.compile(r"\]\((?!https?:)([^)\s#]+)(?:#[^)\s]*)?\)")
LABELLED = re.compile(r"\[`?([\w./-]+)`?\]\((?!https?:)([^)\s#]+)(?:#[^)\s]*)?\)")

NAMED = re.compile(r"`([\w.-]+(?:/[\w.-]+)+\.py)`((?:, `[\w.-]+\.py`)*)")
"""A file in running text, and others of the same directory that are named after it."""

HOMES = ("", "src", "src/unbroken", "lab/src", "lab/src/unbroken_lab")
"""Where the paths of files begin that pages name."""


@pytest.mark.parametrize("page", PARTS)
def test_pages_are_up_to_date(page: str) -> None:
    text = (DOCS / page).read_text()
    assert made(page, text) == text, "run make reference"


def test_every_setting_has_its_place_once() -> None:
    names = [name for group in GROUPS for name in group.changes]
    assert sorted(names) == sorted(Settings.model_fields)
    text = (DOCS / "settings.md").read_text()
    assert all(f"| `{name}` |" in text for name in Settings.model_fields)


def test_every_connector_is_described() -> None:
    from unbroken.connectors.base import SinkConnector, SourceConnector

    found = {**connectors(SourceConnector), **connectors(SinkConnector)}
    assert set(found) == set(MORE) and set(EXTRAS) <= set(found)
    told = described(found["Kafka"])
    assert told.parameters["max_bytes_per_pulse"] == told.parameters["max_records_per_pulse"]
    assert told.text.startswith("The records of Kafka topics, each once.")


def test_marks_have_to_be_there_once() -> None:
    page = "a\n<!-- x -->\nold\n<!-- end of x -->\nb\n"
    assert replaced(page, "x", "new\n") == "a\n<!-- x -->\nnew\n<!-- end of x -->\nb\n"
    for bad in ("", page + page, "<!-- end of x -->\n<!-- x -->\n"):
        with pytest.raises(UnbrokenError, match="needs one line"):
            replaced(bad, "x", "new\n")


def pictures() -> ModuleType:
    folder = DOCS / "pictures"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("pictures_of_docs", folder / "draw.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(folder))


def test_pictures_are_up_to_date_and_shown() -> None:
    everywhere = "".join(text_of(page) for page in pages())
    for name, content in pictures().drawn().items():
        assert (DOCS / "images" / name).read_text() == content, "run make reference"
        assert f"images/{name}" in everywhere, f"{name} is on no page"


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whatever tags plugins want."""


def test_every_page_is_in_the_navigation() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    shown: set[str] = set()

    def walk(entry: object) -> None:
        match entry:
            case str():
                shown.add(entry)
            case list():
                for each in entry:
                    walk(each)
            case dict():
                walk(list(entry.values()))

    walk(settings["nav"])
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert there <= shown, f"not in mkdocs.yml: {sorted(there - shown)}"


@pytest.mark.parametrize("page", pages())
def test_links_in_the_repository_lead_somewhere(page: str) -> None:
    here = (ROOT / page).parent
    missing = [link for link in LINK.findall(text_of(page)) if not (here / link).exists()]
    missing = [link for link in missing if Path(link).name not in ("contributing.md", "changelog.md")]
    assert not missing


def is_stale(label: str, target: str) -> bool:
    """Whether a link that is called like a file or a module of tests leads to another one."""
    named = Path(target).name if Path(label).suffix == ".py" else Path(target).stem
    return (Path(label).suffix == ".py" or label.startswith("test_")) and Path(label).name != named


def missing_files(text: str) -> list[str]:
    """The files that a page names in its running text and that do not exist."""
    named: list[str] = []
    for path, others in NAMED.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        folder = path.rpartition("/")[0]
        named += [path, *(f"{folder}/{name}" for name in re.findall(r"`([^`]+)`", others))]
    return [path for path in named if not any((ROOT / home / path).is_file() for home in HOMES)]


@pytest.mark.parametrize("page", pages())
def test_links_are_called_like_the_files_they_lead_to(page: str) -> None:
    assert not [found for found in LABELLED.findall(text_of(page)) if is_stale(*found)]


@pytest.mark.parametrize("page", pages())
def test_files_that_a_page_names_exist(page: str) -> None:
    assert not missing_files(text_of(page))


def test_stale_names_are_found() -> None:
    assert is_stale("test_sharing", "../tests/sim/test_load_sharing.py") and is_stale("a.py", "b/c.py")
    assert not is_stale("test_a", "../tests/test_a.py") and not is_stale("limits", "limits.md")
    assert missing_files("`node/loop.py`, `forks.py` and `node/no_such.py`") == ["node/forks.py", "node/no_such.py"]


def test_site_needs_nothing_from_elsewhere() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    assert settings["theme"]["font"] is False
    assert not [name for name in settings.get("extra_javascript", []) + settings["extra_css"] if "//" in name]
