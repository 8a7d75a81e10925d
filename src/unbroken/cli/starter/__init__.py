"""The files of a first project, as ``unbroken init`` writes them: a flow, a test of it, and what to try."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from string import Template

from unbroken.errors import Refused

SOURCES = ("generator", "files", "kafka", "push")
"""Where the rows of a first flow may come from."""

COMMON = {"README.md": "readme", "test_flow.py": "test_flow", ".gitignore": "gitignore"}

OWN = {
    "generator": {"flow.py": "generator"},
    "files": {"flow.py": "files", "in/orders-1.json": "orders"},
    "kafka": {"flow.py": "kafka"},
    "push": {"flow.py": "push", "push_orders.py": "push_orders"},
}
"""By source: the files of a project, and the templates they are made from."""

TRIES = {
    "generator": "The flow makes its orders itself, twenty in a second.",
    "files": "Orders are JSON lines in files below `in/`. Put another file there while it runs: its rows are taken.",
    "kafka": "Orders come from a Kafka topic, `orders` at `localhost:9092`; change both in `flow.py`. The client for\n"
    "Kafka is an extra: `pip install 'unbroken[kafka]'`.",
    "push": "Programs push orders by HTTP; `python push_orders.py` is one of them. Run it in a second terminal.",
}

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def project(name: str, source: str) -> dict[str, str]:
    """The text of each file of a project, by its path in it."""
    if not NAME.fullmatch(name) or name == "ingress":
        raise Refused(f"{name!r} is no name for a flow; use letters, digits, - and _, and begin with a letter")
    words = {"name": name, "source": source, "about": TRIES[source]}
    return {path: _made(template, words) for path, template in {**OWN[source], **COMMON}.items()}


def name_for(directory: Path) -> str:
    """What a flow in a directory may be called."""
    found = re.sub(r"[^A-Za-z0-9_-]+", "-", directory.resolve().name).strip("-_")
    return found if NAME.fullmatch(found) else "orders"


def write(directory: Path, texts: dict[str, str]) -> list[Path]:
    """Write a project; raises Refused, and writes nothing, if any of its files is there already."""
    paths = {directory / path: text for path, text in texts.items()}
    taken = [str(path) for path in paths if path.exists() or path.is_symlink()]
    if taken:
        raise Refused(f"nothing is overwritten, and {', '.join(taken)} is there already; give another directory")
    if directory.exists() and not directory.is_dir():
        raise Refused(f"{directory} is not a directory; give another one")
    for path, text in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:
            file.write(text)
    return list(paths)


def _made(template: str, words: dict[str, str]) -> str:
    text = (files("unbroken.cli.starter") / "templates" / f"{template}.txt").read_text()
    return Template(text).substitute(words)
