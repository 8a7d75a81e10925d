"""Where a connector's data is: a directory of the nodes, or a URL, which has to be one that the connector knows."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


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


def elsewhere(path: Path, connector: str, otherwise: str = "") -> list[str]:
    """Why a path that is no directory of the nodes cannot be used, as a sentence with a remedy."""
    scheme = scheme_of(path)
    if scheme is None:
        return []
    what = f"The path of {connector} begins with {scheme}:, and {connector} knows directories of the nodes only"
    return [f"{what}; mount the place on all nodes and give that path{otherwise}."]
