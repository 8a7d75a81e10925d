"""Where a connector's data is: a directory of the nodes, or a URL, which has to be one that the connector knows."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from unbroken.errors import Flaw

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

_KNOWN = re.compile(
    r"(abfss?|adl|cosn|dbfs|file|ftps?|gcs|gs|hdfs|https?|obs|oci|oss|r2|s3[an]?|sftp|swebhdfs|viewfs|wasbs?|webhdfs)"
    r":(?!/)",
    re.IGNORECASE,
)
"""What begins like the URL of a file system and is none. Other names with colons, as those of times, are paths."""

_HOME = re.compile(r"~[^/]*(/|$)")


def scheme_of(place: str | os.PathLike[str]) -> str | None:
    """The scheme of a URL, in lower case; None for a path. ``hdfs:/data`` is a URL, too."""
    found = _SCHEME.match(os.fspath(place))
    return None if found is None else found[1].lower()


def local_path(place: str | os.PathLike[str]) -> Path:
    """A directory as a path, also if it is given as ``file:///data`` or ``file:/data``."""
    text = os.fspath(place)
    if scheme_of(text) != "file" or urlsplit(text).netloc not in ("", "localhost"):
        return Path(place)
    return Path(url2pathname(urlsplit(text).path))


def unclear(place: str | os.PathLike[str], subject: str) -> list[Flaw]:
    """Why a place is not what it seems to be: it would be a directory of an odd name.

    ``subject`` names the place in the sentence, as in "The path of Parquet".
    """
    text = os.fspath(place)
    if text != text.strip():
        return [Flaw(f"{subject}, {text!r}, begins or ends with white space", f"write {text.strip()!r}")]
    if _HOME.match(text):
        what = f"{subject}, {text!r}, begins with ~, which only a shell replaces"
        return [Flaw(what, f"write the whole path, such as /home/user/{text.partition('/')[2]}")]
    found = _KNOWN.match(text)
    if found is None:
        return []
    rest = text[found.end() :]
    url = f"file:///{rest}" if found[1].lower() == "file" else f"{found[1]}://{rest}"
    return [Flaw(f"{subject}, {text!r}, is neither a path nor a URL", f"write {url}, or the whole path of a directory")]


def elsewhere(path: Path, connector: str, otherwise: str = "") -> list[Flaw]:
    """Why a path that is no directory of the nodes cannot be used."""
    found = unclear(path, f"The path of {connector}")
    scheme = scheme_of(path)
    if found or scheme is None:
        return found
    what = f"The path of {connector} begins with {scheme}:, and {connector} knows directories of the nodes only"
    return [Flaw(what, f"mount the place on all nodes and give that path{otherwise}")]
