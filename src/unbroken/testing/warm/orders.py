"""What a pool tells its node processes and what they answer: values of one codec, one per line, over a Unix socket.

The socket is in a directory that only its owner can enter. Its end tells either side that the other one is gone.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from unbroken.codecs.codec import Codec, Undecodable
from unbroken.flow.settings import Settings
from unbroken.protocol.values.ids import NodeId
from unbroken.security.secret import Secret, declared

log = logging.getLogger(__name__)

IDLE = "idle"
BUSY = "busy"
ENDS = "ends"

MOST_LINE_BYTES = 1_000_000
"""An order names files; whoever sends more than this is not one of ours."""


@dataclass(frozen=True)
class Recipe:
    """What a Spark session is started with and cannot be told later: flows that differ in it share no process."""

    cores: int
    memory: str
    jvm: str
    spark: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, Secret], ...] = ()
    """Options of Spark that each process looks up for itself."""

    @classmethod
    def of(cls, settings: Settings) -> Recipe:
        options = sorted(settings.spark.items())
        plain = tuple((name, value) for name, value in options if not isinstance(value, Secret))
        secrets = tuple((name, value) for name, value in options if isinstance(value, Secret))
        return cls(settings.node_cores, settings.node_memory, settings.jvm, plain, secrets)

    def settings(self) -> Settings:
        spark = declared({**dict(self.spark), **dict(self.secrets)})
        return Settings(node_cores=self.cores, node_memory=self.memory, jvm=self.jvm, spark=spark)


RECIPE = Codec(Recipe, "recipe", readable=True)


@dataclass(frozen=True)
class NodeTask:
    """Run a node, under the conditions that a file says."""

    name: NodeId
    flow: str
    zookeeper: str
    directory: str
    conditions: str
    token: str
    port: int
    nodes: int
    standby: bool
    routes: Mapping[NodeId, str]


@dataclass(frozen=True)
class ReferenceTask:
    """Compute what the run in ``root`` should have had as results, into ``out``."""

    root: str
    out: str


@dataclass(frozen=True)
class ProcessOrder:
    """What a node process is to do next, and in which surroundings.

    ``folder``, ``path`` and ``environment`` are those of the test at this moment, so that the flow's file finds what it
    finds there; ``partitions`` is what the flow's settings say of Spark's.
    """

    task: NodeTask | ReferenceTask
    log: str
    folder: str
    path: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    partitions: int = 1


@dataclass(frozen=True)
class StopNode:
    """The node that runs in a process is to end."""


@dataclass(frozen=True)
class ProcessCalled:
    """The first word of a process."""

    name: str


@dataclass(frozen=True)
class ProcessState:
    """A process is `IDLE`, `BUSY` or `ENDS`; why its last order failed, and how long it took to be warm."""

    state: str
    failure: str = ""
    took_s: float | None = None


Said = ProcessOrder | StopNode | ProcessCalled | ProcessState

SAID: Codec[Said] = Codec(Said, "warm-process", readable=True)


class ProcessLine:
    """One end of a connection over which values go in both directions; sending is safe from several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reading = connection.makefile("rb")
        self._lock = threading.Lock()

    def send(self, value: Said) -> bool:
        """Send a value; False if the other side is gone."""
        data = SAID.encode(value) + b"\n"
        with self._lock:
            try:
                self._connection.sendall(data)
            except OSError:
                return False
        return True

    def receive(self) -> Said | None:
        """The next value; None if the other side is gone, or is not one of ours."""
        try:
            data = self._reading.readline(MOST_LINE_BYTES)
        except (OSError, ValueError):
            return None
        if not data.endswith(b"\n"):
            return None
        try:
            return SAID.decode(data)
        except Undecodable as error:
            log.warning("a line is closed: %s", error)
            return None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._connection.close()
