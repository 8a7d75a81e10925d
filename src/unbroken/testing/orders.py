"""What a pool tells its node processes and what they answer: JSON objects, one per line, over a Unix socket.

The socket is in a directory that only its owner can enter. Its end tells either side that the other one is gone.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from unbroken.flow.settings import Settings
from unbroken.security.secret import Secret, declared

RUN = "run"
REFERENCE = "reference"
STOP = "stop"

IDLE = "idle"
BUSY = "busy"

MOST_LINE_BYTES = 1_000_000
"""An order names files; whoever sends more than this is not one of ours."""


@dataclass(frozen=True)
class Recipe:
    """What a Spark session is started with and cannot be told later: flows that differ in it share no process."""

    cores: int
    memory: str
    jvm: str
    spark: tuple[tuple[str, str | Secret], ...] = ()

    @classmethod
    def of(cls, settings: Settings) -> Recipe:
        return cls(settings.node_cores, settings.node_memory, settings.jvm, tuple(sorted(settings.spark.items())))

    def settings(self) -> Settings:
        return Settings(node_cores=self.cores, node_memory=self.memory, jvm=self.jvm, spark=dict(self.spark))

    def to_json(self) -> str:
        spark = {key: {item.kind: item.place} if isinstance(item, Secret) else item for key, item in self.spark}
        return json.dumps({"cores": self.cores, "memory": self.memory, "jvm": self.jvm, "spark": spark})

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        value = json.loads(text)
        return cls(value["cores"], value["memory"], value["jvm"], tuple(declared(value["spark"]).items()))


@dataclass(frozen=True)
class Order:
    """What a node process is to do next, and in which surroundings.

    ``what`` is `RUN`, with the options of a node, or `REFERENCE`, with those of a reference. ``folder``, ``path`` and
    ``environment`` are those of the test at this moment, so that the flow's file finds what it finds there;
    ``partitions`` is what the flow's settings say of Spark's.
    """

    what: str
    options: Mapping[str, Any]
    log: str
    folder: str
    path: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    partitions: int = 1

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "options": dict(self.options), "environment": dict(self.environment)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Order:
        return cls(**{**value, "path": tuple(value["path"])})


class Line:
    """One end of a connection over which objects go in both directions; sending is safe from several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reading = connection.makefile("rb")
        self._lock = threading.Lock()

    def send(self, value: Mapping[str, Any]) -> bool:
        """Send an object; False if the other side is gone."""
        data = json.dumps(value).encode() + b"\n"
        with self._lock:
            try:
                self._connection.sendall(data)
            except OSError:
                return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """The next object; None if the other side is gone."""
        try:
            data = self._reading.readline(MOST_LINE_BYTES)
        except (OSError, ValueError):
            return None
        if not data.endswith(b"\n"):
            return None
        value: dict[str, Any] = json.loads(data)
        return value

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._connection.close()
