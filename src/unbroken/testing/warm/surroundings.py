"""A process as the test that uses it is: its folder, its environment, its modules, what Spark's workers import.

A user's flow may import modules that lie beside it, read the environment and open relative paths. In a process that
serves many tests, one after the other, each must find what it would find in a process of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from unbroken.testing.warm.orders import ProcessOrder

OWN = ("JAVA_HOME", "PYSPARK_", "SPARK_")
"""How variables begin that belong to the process and its Spark."""

TEMPORARY = ("PYTEST_CURRENT_TEST", "PYTHONPATH")
"""Variables that differ from test to test for reasons of their own, or are made from other things."""


class ProcessSurroundings:
    """What a process was started with, and goes back to after each order."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._folder = os.getcwd()
        self._environment = dict(os.environ)
        self._path = list(sys.path)
        self._modules = set(sys.modules)

    @contextmanager
    def of(self, order: ProcessOrder) -> Iterator[None]:
        """Be as the test is that has given the order."""
        additional = [entry for entry in order.path if entry not in self._path]
        os.chdir(order.folder)
        os.environ.clear()
        own = {name: value for name, value in self._environment.items() if name.startswith(OWN)}
        os.environ.update({**order.environment, **own})
        sys.path[:] = [*additional, *self._path]
        self._tell_workers(additional, order.environment)
        self._session.conf.set("spark.sql.shuffle.partitions", str(order.partitions))
        try:
            yield
        finally:
            self._restore()

    def _tell_workers(self, path: list[str], environment: Mapping[str, str]) -> None:
        """Spark's Python processes are given this with each function; those of another test are other processes."""
        changed = {
            name: value
            for name, value in environment.items()
            if self._environment.get(name) != value and not name.startswith((*OWN, *TEMPORARY))
        }
        workers = self._session.sparkContext.environment
        workers.clear()
        workers.update(changed)
        if path:
            workers["PYTHONPATH"] = os.pathsep.join(path)

    def _restore(self) -> None:
        os.chdir(self._folder)
        os.environ.clear()
        os.environ.update(self._environment)
        sys.path[:] = self._path
        # Another test may have other modules of these names; those of installed packages are the same for all.
        for name in set(sys.modules) - self._modules:
            file = getattr(sys.modules[name], "__file__", None)
            if name.startswith("unbroken_flow_") or (file is not None and not _installed(file)):
                del sys.modules[name]


def _installed(file: str) -> bool:
    """Whether a module belongs to Python, to an installed package, or to this one."""
    path = Path(file).resolve()
    ours = Path(__file__).resolve().parents[2]
    packages = any(part in ("site-packages", "dist-packages") for part in path.parts)
    return packages or any(path.is_relative_to(place) for place in (ours, Path(os.__file__).resolve().parent))
