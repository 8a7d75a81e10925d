"""Whether the executors of a Spark cluster can do a node's work: asked before the flow begins, not found out later.

Executors are processes on other machines. They need this package in the Python that the node names, and, if a segment
has state, the node's directory at the same path: Spark writes the state where the checkpoint is, from whichever
executor a task runs in, and the node makes copies of it from there. Units need nothing: what is not found at its path
is fetched from the node.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import unbroken
from unbroken.spark.master import MasterError, executor_ids
from unbroken.spark.runner import root_cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROBE = "probe"
"""The directory below that of a node in which executors show that they can read and write there."""

TASK_S = 0.1
"""How long each question takes, so that those of one round are answered by all executors and not by the first."""

ROUNDS = 5


@dataclass(frozen=True)
class Sight:
    """What a Python process of an executor sees: its versions, what the node wrote, and what it could leave there."""

    host: str
    process: int
    python: str
    version: str
    user: int
    read: str
    left: str


def look(directory: str, round_of: Iterable[int]) -> Iterator[Sight]:
    """Look around; runs in the executors."""
    for _ in round_of:
        place = Path(directory)
        read, left = "", ""
        try:
            read = (place / "asked").read_text()
            mine = place / f"answer-{uuid.uuid4().hex}"
            mine.write_text(read)
            left = mine.name
        except OSError as error:
            read = read or f"({error.strerror})"
        time.sleep(TASK_S)
        # The parent is the process that all Python processes of an executor are forked from.
        who = (platform.node(), os.getppid(), platform.python_version(), unbroken.__version__, os.getuid())
        yield Sight(*who, read, left)


def check_executors(session: SparkSession, directory: Path, stateful: Iterable[str]) -> None:
    """Ask all executors that are there; raises MasterError if one of them cannot do the work of this node."""
    place, secret = directory / PROBE, uuid.uuid4().hex
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        (place / "asked").write_text(secret)
        found: dict[tuple[str, int], Sight] = {}
        for _ in range(ROUNDS):
            for sight in _ask(session, place):
                found[sight.host, sight.process] = sight
            if len(found) >= len(executor_ids(session)):
                break
        for sight in found.values():
            trouble = trouble_with(sight, unbroken.__version__, place, secret, sorted(stateful))
            if trouble:
                raise MasterError(trouble)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _ask(session: SparkSession, place: Path) -> list[Sight]:
    context, where = session.sparkContext, str(place)
    count = 2 * max(context.defaultParallelism, len(executor_ids(session)))
    try:
        answers: list[Sight] = context.parallelize(range(count), count).mapPartitions(partial(look, where)).collect()
    except Exception as error:
        raise MasterError(
            f"the executors of {context.master} cannot run a node's code: {root_cause(str(error))}. They need a Python "
            f"at {os.environ.get('PYSPARK_PYTHON', sys.executable)} (or where PYSPARK_PYTHON says) with "
            f"unbroken {unbroken.__version__} installed."
        ) from error
    return answers


def trouble_with(sight: Sight, version: str, place: Path, secret: str, stateful: list[str]) -> str | None:
    """Why an executor cannot do its part; None if it can."""
    if sight.version != version:
        return (
            f"the executor on {sight.host} has unbroken {sight.version} and this node {version}. Install the same "
            "version in the Python of the executors."
        )
    if not stateful:
        return None
    directory, names = place.parent, ", ".join(stateful)
    if sight.read != secret or not (place / sight.left).is_file():
        why = sight.read if sight.read.startswith("(") else "(another directory has the same name there)"
        return (
            f"the executor on {sight.host} does not share {directory} with this node {why}. The state of {names} is "
            "written there by executors and copied by the node: give a directory on a file system that all of them "
            "have at the same path with --dir, or leave --spark-master out."
        )
    owner = (place / sight.left).stat().st_uid
    if owner != os.getuid():
        return (
            f"the executor on {sight.host} writes to {directory} as user {owner}, and this node is user {os.getuid()}: "
            "they cannot tidy up after each other. Run Spark's workers and the node as the same user."
        )
    return None
