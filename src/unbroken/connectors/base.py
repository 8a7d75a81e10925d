"""The contracts of sources and sinks.

Connectors are declared in the user's file, so the objects a user writes are small descriptions; what does
the work is opened from them on the nodes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from unbroken.data.rows.parsed import Rows
from unbroken.errors import Flaw
from unbroken.protocol.values.run import NO_RUN, RunIdentity
from unbroken.protocol.values.units import UnitHeader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Position = Any
"""How far a source has been read: any JSON value; it travels in the ingress log."""


@dataclass(frozen=True)
class Cut:
    """How far a pulse reaches in one source; ``exhausted`` says that nothing will ever follow.

    A source that cannot be asked is not ``reachable``: it may have rows that nobody knows of, while the silence of one
    that can be says that there are none. ``why`` it cannot be asked is told to whoever looks after the flow.
    """

    position: Position
    exhausted: bool = False
    reachable: bool = True
    why: str = field(default="", compare=False)


class SourceReader(ABC):
    """An opened source on an ingress node.

    ``poll`` runs on the node that leads the ingress, ``read`` on every ingress node with the positions that
    were agreed, possibly more than once: it must return the same rows each time.
    """

    paces: bool = False
    """Whether no pulse is cut before this source has answered, however long that takes. For sources of tests, whose
    units have to be the same in every run; one of production would hold up all others."""

    @abstractmethod
    def poll(self, position: Position | None, now_ms: int) -> Cut:
        """How far the source can be read at ``now_ms``, given where the last pulse ended (None: nowhere)."""

    @abstractmethod
    def read(self, start: Position | None, end: Position) -> Rows:
        """The rows after ``start`` up to ``end``, with the columns and types of the source's schema."""

    def close(self) -> None:  # noqa: B027  (most sources hold nothing open)
        """Let go of files and connections."""


class SourceConnector(ABC):
    """What a user writes to declare a source."""

    @property
    @abstractmethod
    def schema(self) -> StructType:
        """The columns of the source."""

    @abstractmethod
    def problems(self) -> list[Flaw]:
        """What is wrong with the declaration, and what to do about it."""

    @abstractmethod
    def open(self) -> SourceReader:
        """Open the source on an ingress node."""


class SinkWriter(ABC):
    """An opened sink on a node that hosts a replica of the last segment.

    Several replicas may call ``deliver`` for the same unit, at the same time, on different nodes, and again
    after a restart: the unit must appear once, if the sink is idempotent. In a flow that delivers at most once there is
    one call for each unit.
    """

    @abstractmethod
    def deliver(self, header: UnitHeader, table: pa.Table) -> bool:
        """Put the unit into the sink; False if it was there already.

        If the sink takes tentative units, this one takes the place of all that cover pulses up to its own.
        """

    def deliver_tentative(self, header: UnitHeader, table: pa.Table) -> bool:
        """Put a unit into the sink that is not stable, marked as such; False if the sink has its pulse already.

        ``header.since`` and ``header.pulse`` say which pulses it covers, ``header.stream.home`` is the stream whose
        stable units will replace it. Calls for a stream are one after the other with those of ``deliver``, on one node;
        on others they may be at the same time.
        """
        raise NotImplementedError(f"{type(self).__name__} takes stable units only")

    def close(self) -> None:  # noqa: B027
        """Let go of files and connections."""


class SinkConnector(ABC):
    """What a user writes to declare a sink."""

    client: bool = False
    """True for sinks that clients read by subscription: the node keeps units for them, delivers nothing."""

    idempotent: bool = True
    """Whether a unit that is delivered again changes nothing, because the sink keeps a ledger with the data."""

    tentative: bool = False
    """Whether it takes units that are not stable, and replaces them by the stable ones."""

    run: RunIdentity = NO_RUN
    """The run whose units are written, set before it is opened: a ledger compares it before the number of a unit."""

    identity: str = ""
    """The flow's name and the sink's in it, set when it is declared: how a ledger that several flows share knows it."""

    @abstractmethod
    def problems(self) -> list[Flaw]:
        """What is wrong with the declaration, and what to do about it."""

    def occupied(self) -> str | None:
        """Why a run that starts from nothing must not write here unasked: an earlier one has left its results."""
        return None

    def runs(self) -> frozenset[str]:
        """The runs whose results are here, as the ledger names them; asked when a new one is allowed to add to them."""
        return frozenset()

    def open(self, flow_dir: Path) -> SinkWriter:
        """Open the sink on a node."""
        raise NotImplementedError(f"{type(self).__name__} is read by clients, not written by nodes")
