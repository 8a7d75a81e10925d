"""What makes a site of these pages, beside MkDocs itself.

The pages are written to be read in the repository, too: they link to code, tests and deployment files by relative paths
that lead out of this directory. The site has a page for each such file, so that it is complete by itself. What pages
say to the tests about their code blocks, in comments, is left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

LINK = re.compile(r"(\]\()(\.\./[^)\s#]+)((?:#[^)\s]*)?\))")
COMMENT = re.compile(r"^[ \t]*<!--.*?-->[ \t]*\n", re.MULTILINE | re.DOTALL)
FETCHED = re.compile(r"<(?:script|img|iframe|link\s[^>]*rel=\"?stylesheet)[^>]*\s(?:src|href)=\"?(https?://[^\"\s>]+)")
NOTES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages of the repository that are pages of the site as they are."""

LANGUAGES = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".json": "json", ".sh": "bash", ".toml": "toml"}
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages of the repository, and a page for each file that another page links to."""
    root = _root(config)
    texts = {note: (root / note).read_text() for note in NOTES}
    for note, page in NOTES.items():
        files.append(File.generated(config, page, content=_from_root(texts[note])))
    pages = [file.content_string for file in files.documentation_pages() if file.src_uri not in NOTES.values()]
    wanted = sorted(set(_linked(root, [*pages, *map(_from_root, texts.values())])))
    for path in wanted:
        content = _listing(root, path, wanted) if (root / path).is_dir() else _listed(root / path, path)
        files.append(File.generated(config, source_page(path), content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.src_uri.startswith("source/"):
        return markdown
    return rewritten(COMMENT.sub("", markdown), _root(config))


def on_post_build(*, config: MkDocsConfig) -> None:
    """The site has to be complete by itself: nothing is fetched from elsewhere when it is read."""
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        found = FETCHED.search(page.read_text())
        if found is not None:
            raise PluginError(f"{page} would fetch {found[1]} from elsewhere")


def rewritten(markdown: str, root: Path) -> str:
    """Links out of the directory become links to pages of the site; those that lead nowhere stay, and are warned of."""

    def to_page(found: re.Match[str]) -> str:
        path = _path(found[2])
        known = NOTES.get(path) or (source_page(path) if (root / path).exists() else found[2])
        return f"{found[1]}{known}{found[3]}"

    return LINK.sub(to_page, markdown)


def source_page(path: str) -> str:
    """The page that shows a file or directory of the repository."""
    return f"source/{path}.md"


def _root(config: MkDocsConfig) -> Path:
    return Path(config.docs_dir).parent


def _path(link: str) -> str:
    return posixpath.normpath(link.removeprefix("../"))


def _linked(root: Path, texts: list[str]) -> Iterator[str]:
    for text in texts:
        for found in LINK.finditer(text):
            path = _path(found[2])
            if path not in NOTES and (root / path).exists():
                yield path


def _from_root(text: str) -> str:
    """A page of the repository's top directory, with its links as they would be from here."""
    text = re.sub(r"\]\((?![a-z]+:|#|docs/)([^)\s]+)\)", r"](../\1)", text)
    return text.replace("](docs/", "](")


def _listed(file: Path, path: str) -> str:
    language = LANGUAGES.get(file.suffix, "text")
    return f"{UNSEARCHED}# {file.name}\n\n`{path}`\n\n````{language}\n{file.read_text().rstrip()}\n````\n"


def _listing(root: Path, path: str, shown: list[str]) -> str:
    """What a directory has; files that have a page are linked to."""
    here = posixpath.dirname(source_page(path))
    lines = []
    for entry in sorted((root / path).rglob("*")):
        name = entry.relative_to(root).as_posix()
        if entry.is_file() and "__pycache__" not in name:
            label = entry.relative_to(root / path).as_posix()
            target = posixpath.relpath(source_page(name), here)
            lines.append(f"- [{label}]({target})" if name in shown else f"- {label}")
    return f"{UNSEARCHED}# {path}\n\n" + "\n".join(lines) + "\n"
