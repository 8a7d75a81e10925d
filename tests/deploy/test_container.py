"""The container file: pinned, without root, and what it copies and runs exists. It is not built here."""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from typing import Any

import pytest

from deploy.places import DEPLOY, METRICS_PORT, NODE_PORT, ROOT, read
from unbroken import __version__

FILE = DEPLOY / "container" / "Containerfile"

Stage = list[tuple[str, str]]


@pytest.fixture(scope="module")
def stages() -> list[Stage]:
    """The instructions of each stage, and before them those of none."""
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", FILE.read_text()))
    out: list[Stage] = [[]]
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            out.append([])
        out[-1].append((word, " ".join(rest.split())))
    return out


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return loaded


def values(stage: Stage, word: str) -> list[str]:
    return [rest for found, rest in stage if found == word]


def test_known_instructions_only(stages: list[Stage]) -> None:
    known = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert {word for stage in stages for word, _ in stage} <= known
    assert len(stages) == 3


def test_base_and_dependencies_are_pinned(stages: list[Stage], project: dict[str, Any]) -> None:
    (base,) = values(stages[0], "ARG")
    name, _, image = base.partition("=")
    assert re.fullmatch(r"docker\.io/library/python:3\.(11|12|13)\.\d+-slim-\w+", image)
    assert all(values(stage, "FROM")[0].split()[0] == f"${{{name}}}" for stage in stages[1:])
    assert "--constraint requirements.lock" in " ".join(values(stages[1], "RUN"))
    pinned = {re.split(r"==", line)[0].lower() for line in (ROOT / "requirements.lock").read_text().splitlines()}
    extras = next(rest for rest in values(stages[1], "ARG")).partition("=")[2].split(",")
    wanted = [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]
    names = {re.split(r"[\[<>=!~;]", each)[0].lower() for each in wanted}
    assert names <= pinned


def test_what_is_copied_exists_and_is_enough(stages: list[Stage], project: dict[str, Any]) -> None:
    copied = [word for rest in values(stages[1], "COPY") for word in rest.split()[:-1]]
    assert all((ROOT / word).exists() for word in copied)
    needed = {"pyproject.toml", "src", project["readme"], *project["license-files"], "requirements.lock"}
    assert needed <= set(copied)


def test_it_starts_our_program_without_root(stages: list[Stage], project: dict[str, Any]) -> None:
    final = stages[-1]
    (user,) = values(final, "USER")
    security = read("statefulset")["spec"]["template"]["spec"]["securityContext"]
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"
    words = [word for word, _ in final]
    assert "RUN" not in words[words.index("USER") :], "nothing is installed by the user that runs it"
    (entry,) = values(final, "ENTRYPOINT")
    init, _, program = json.loads(entry)
    assert program in project["scripts"]
    assert init in " ".join(values(final, "RUN"))
    assert f"groupadd --gid {security['runAsGroup']}" in " ".join(values(final, "RUN"))


def test_ports_and_places_are_those_of_the_manifests(stages: list[Stage]) -> None:
    final = stages[-1]
    assert values(final, "EXPOSE") == [f"{NODE_PORT} {METRICS_PORT}"]
    mounts = read("statefulset")["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert values(final, "VOLUME")[0] in {mount["mountPath"] for mount in mounts}


def test_the_code_that_the_build_runs_exists(stages: list[Stage]) -> None:
    imports = re.findall(r"from ([\w.]+) import (\w+)", " ".join(values(stages[1], "RUN")))
    assert imports
    for module, name in imports:
        assert callable(getattr(importlib.import_module(module), name))
    caches = [re.search(r"XDG_CACHE_HOME=(\S+)", " ".join(values(stage, "ENV"))) for stage in stages[1:]]
    assert all(caches)
    assert len({found[1] for found in caches if found}) == 1, "it is looked for where the build has put it"


def test_the_version_in_the_comment_is_this_one() -> None:
    assert re.findall(r"unbroken:(\S+)", FILE.read_text()) == [__version__] * 2
