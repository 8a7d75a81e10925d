"""The threads that hand units to sinks."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

import pyarrow as pa

from unbroken.connectors.base import SinkWriter
from unbroken.protocol.ids import StreamId
from unbroken.protocol.messages import Event, SinkDelivered
from unbroken.protocol.units import UnitHeader
from unbroken.transport.store import decode_unit

log = logging.getLogger(__name__)

RETRY_S = 0.5
"""Pause before a delivery that failed is tried again; the sink's cause is usually away for seconds."""


class SinkWorkers:
    """One thread per stream to a sink; a failing sink holds only its own stream up."""

    def __init__(self, post: Callable[[Event], None], read_outbox: Callable[[UnitHeader], pa.Buffer]) -> None:
        self._post = post
        self._read_outbox = read_outbox
        self._queues: dict[StreamId, queue.Queue[UnitHeader | None]] = {}
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self.writes: dict[StreamId, int] = {}

    def open(self, stream: StreamId, writer: SinkWriter) -> None:
        # The protocol hands out one unit at a time per stream: the queue never grows.
        self._queues[stream] = queue.Queue(4)
        self.writes[stream] = 0
        thread = threading.Thread(target=self._work, args=(stream, writer), name=f"sink-{stream}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def deliver(self, header: UnitHeader) -> None:
        self._queues[header.stream].put(header)

    def close(self) -> None:
        self._closed.set()
        for waiting in self._queues.values():
            waiting.put(None)
        for thread in self._threads:
            thread.join(timeout=5)

    def _work(self, stream: StreamId, writer: SinkWriter) -> None:
        while (header := self._queues[stream].get()) is not None:
            self._deliver(writer, header)
        writer.close()

    def _deliver(self, writer: SinkWriter, header: UnitHeader) -> None:
        while not self._closed.is_set():
            try:
                _, table = decode_unit(self._read_outbox(header))
                if writer.deliver(header, table):
                    self.writes[header.stream] += 1
                self._post(SinkDelivered(header.stream, header.number))
                return
            except FileNotFoundError:
                # Dropped from the outbox meanwhile, which happens only to units that are in the sink.
                log.info("unit %d of %s was delivered by another replica", header.number, header.stream)
                self._post(SinkDelivered(header.stream, header.number))
                return
            except Exception as error:
                log.warning("unit %d of %s not delivered, trying again: %s", header.number, header.stream, error)
                self._closed.wait(RETRY_S)
