"""The sinks that the replicas of a node deliver to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from unbroken.connectors.base import SinkConnector
from unbroken.flow.dataflow import Dataflow
from unbroken.node.replicas.hosting import Outlets
from unbroken.node.replicas.programs import Programs
from unbroken.node.sink_threads import SinkWorkers
from unbroken.protocol.instructions import Deliver
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.run import RunIdentity


class SinkOutlets(Outlets):
    """Opens and closes the sinks of replicas, and hands them units. ``root`` is the directory of the node."""

    def __init__(
        self, sinks: SinkWorkers, flow: Dataflow, programs: Programs, root: Path, run: Callable[[], RunIdentity]
    ) -> None:
        self._sinks = sinks
        self._flow = flow
        self._programs = programs
        self._root = root
        self._run = run

    def open(self, replica: ReplicaId) -> None:
        for stream, connector in self._sinks_of(replica):
            stops = self._flow.sinks[stream.consumer.part].on_refusal == "stop"
            self._sinks.open(stream, connector, self._root, stops)

    def close_one(self, replica: ReplicaId) -> None:
        for stream, _ in self._sinks_of(replica):
            self._sinks.close_one(stream)

    def deliver(self, step: Deliver) -> None:
        self._sinks.deliver(step)

    def writes(self, stream: StreamId) -> int:
        """Units of a stream that this node put into the sink itself."""
        return self._sinks.writes.get(stream, 0)

    def busy_s(self) -> dict[StreamId, float]:
        """For how long each sink has not come back from one attempt to hand it a unit."""
        return self._sinks.busy_s()

    def close(self) -> None:
        self._sinks.close()

    def _sinks_of(self, replica: ReplicaId) -> list[tuple[StreamId, SinkConnector]]:
        """The streams of a replica that are written to sinks."""
        sinks, topology = self._flow.sinks, self._programs.topology
        outputs = topology.outputs(replica.shard)
        for name, sink in sinks.items():
            # One that is never handed anything tentative need not keep account of it.
            sink.connector.tentative = name in topology.tentative_sinks
            sink.connector.run = self._run()
        found = [(stream, sinks[stream.consumer.part].connector) for stream in outputs if stream.consumer.part in sinks]
        return [(stream, connector) for stream, connector in found if not connector.client]
