"""The threads that hand units to sinks."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from unbroken.connectors.base import SinkConnector, SinkWriter
from unbroken.protocol.events import Event, SinkDelivered, SinkFailed
from unbroken.protocol.ids import ReplicaId, StreamId
from unbroken.protocol.instructions import Deliver
from unbroken.protocol.units import UnitHeader
from unbroken.transport.store import decode_unit

log = logging.getLogger(__name__)

RETRY_S = 0.5
"""Pause before a delivery that failed is tried again; the sink's cause is usually away for seconds."""


class SinkWorkers:
    """One thread per stream to a sink; a failing sink holds only its own stream up."""

    def __init__(
        self, post: Callable[[Event], None], read_outbox: Callable[[ReplicaId, UnitHeader], pa.Buffer]
    ) -> None:
        self._post = post
        self._read_outbox = read_outbox
        self._queues: dict[StreamId, queue.Queue[Deliver | None]] = {}
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self.writes: dict[StreamId, int] = {}

    def open(self, stream: StreamId, connector: SinkConnector, flow_dir: Path) -> None:
        """Be ready to deliver a stream; does nothing if it is open already."""
        if stream in self._queues:
            return
        # The protocol hands out one unit at a time per stream: the queue never grows.
        waiting: queue.Queue[Deliver | None] = queue.Queue(4)
        self._queues[stream] = waiting
        self.writes.setdefault(stream, 0)
        arguments = (connector.open(flow_dir), waiting)
        thread = threading.Thread(target=self._work, args=arguments, name=f"sink-{stream}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def deliver(self, step: Deliver) -> None:
        waiting = self._queues.get(step.header.stream.home)
        if waiting is not None:
            waiting.put(step)

    def close_one(self, stream: StreamId) -> None:
        """End the delivery of a stream that is not produced here any more."""
        waiting = self._queues.pop(stream, None)
        if waiting is not None:
            waiting.put(None)

    def close(self) -> None:
        self._closed.set()
        for waiting in self._queues.values():
            waiting.put(None)
        for thread in self._threads:
            thread.join(timeout=5)

    def _work(self, writer: SinkWriter, waiting: queue.Queue[Deliver | None]) -> None:
        while (job := waiting.get()) is not None:
            self._deliver(writer, job)
        writer.close()

    def _deliver(self, writer: SinkWriter, job: Deliver) -> None:
        header, reason = job.header, ""
        while not self._closed.is_set():
            try:
                _, table = decode_unit(self._read_outbox(job.replica, header))
            except FileNotFoundError:
                # Dropped from the outbox meanwhile, which happens only to units that are done with.
                log.info("unit %d of %s was delivered by another replica", header.number, header.stream)
                self._post(SinkDelivered(header.stream, header.number, written=False))
                return
            except Exception as error:
                reason = f"it cannot be read: {error}"
            else:
                written, failure = self._hand_over(writer, header, table)
                if failure is None:
                    self._post(SinkDelivered(header.stream, header.number, written))
                    return
                if not header.stable:
                    # A stable unit will take its place, and must not wait behind it.
                    log.warning("a tentative unit of %s is left out: %s", header.stream, failure)
                    self._post(SinkDelivered(header.stream, header.number, written=False))
                    return
                if job.once:
                    self._post(SinkFailed(header.stream, header.number, failure))
                    return
                reason = failure
            log.warning("unit %d of %s not delivered, trying again: %s", header.number, header.stream, reason)
            self._closed.wait(RETRY_S)

    def _hand_over(self, writer: SinkWriter, header: UnitHeader, table: pa.Table) -> tuple[bool, str | None]:
        """Give a unit to its sink: whether that wrote it, and why the sink failed, None if it has the unit. A sink may
        be a user's code."""
        try:
            written = writer.deliver(header, table) if header.stable else writer.deliver_tentative(header, table)
        except Exception as error:
            return False, f"{type(error).__name__}: {error}"
        if written:
            self.writes[header.stream.home] += 1
        return bool(written), None
