"""The threads that hand units to sinks."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from unbroken.codecs.codec import Codec, Undecodable
from unbroken.connectors.base import SinkConnector, SinkWriter
from unbroken.connectors.dead_letters import DeadLetters
from unbroken.connectors.failures import is_passing_at_sink
from unbroken.data.checksum import Damaged, replace_file, sealed, unsealed
from unbroken.data.unit_store import decode_unit
from unbroken.errors import reason_of
from unbroken.observe.notices import text_of
from unbroken.protocol.events import Event, SinkDelivered, SinkFailed, SinkRefused
from unbroken.protocol.ingress.quarantine import Attempts
from unbroken.protocol.instructions import Deliver
from unbroken.protocol.values.ids import ReplicaId, StreamId
from unbroken.protocol.values.notices import Notice
from unbroken.protocol.values.notices.sinks import SinkOpened, SinkUnopened
from unbroken.protocol.values.units import UnitHeader
from unbroken.security.secret import masked
from unbroken.threads import LastingThread

log = logging.getLogger(__name__)

RETRY_S = 0.5
"""Pause before a delivery that failed is tried again; the sink's cause is usually away for seconds."""

REFUSALS = 5
"""How often a sink may refuse a unit in the same way before the unit is set aside, unless the settings differ."""

STOPPED = "stopped-sinks"
"""Directory of a node with a file for each stream whose sink has stopped: a later process must not go on after it."""

STAYS = (
    "The sink stays stopped; to let it continue, stop all nodes, delete the file on each of them, and start them again."
)


@dataclass(frozen=True)
class _Stop:
    """What is kept of a sink that has stopped: the unit that it refused, and why."""

    number: int
    reason: str


_STOP = Codec(_Stop, "sink-stop", readable=True)


class SinkWorkers:
    """One thread per stream to a sink; a failing sink holds only its own stream up.

    A unit that the sink refuses several times in the same way, for a reason that lies in its rows, is set aside: the
    rows go to the dead letters, in a file that is named by stream and number, and the sink is given the unit without
    rows, so that its ledger advances. Another replica that has not heard of it meets the same refusal, or finds the
    unit in the ledger.
    """

    def __init__(
        self,
        post: Callable[[Event], None],
        read_outbox: Callable[[ReplicaId, UnitHeader], pa.Buffer],
        letters: Callable[[], DeadLetters],
        refusals: int = REFUSALS,
        tell: Callable[[Notice], None] = lambda notice: log.warning("%s", text_of(notice)),
    ) -> None:
        self._post = post
        self._read_outbox = read_outbox
        self._letters = letters
        self._refusals = refusals
        self._tell = tell
        self._queues: dict[StreamId, queue.Queue[Deliver | None]] = {}
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._began_s: dict[StreamId, float] = {}
        self._markers: dict[StreamId, Path] = {}
        self.writes: dict[StreamId, int] = {}

    def open(self, stream: StreamId, connector: SinkConnector, flow_dir: Path, stops: bool = False) -> None:
        """Be ready to deliver a stream; does nothing if it is open already.

        With ``stops``, the sink stops at a unit that it refuses, also for later processes on ``flow_dir``.
        """
        if stream in self._queues:
            return
        # The protocol hands out one unit at a time per stream: the queue never grows.
        waiting: queue.Queue[Deliver | None] = queue.Queue(4)
        self._queues[stream] = waiting
        self.writes.setdefault(stream, 0)
        if stops:
            self._markers[stream] = flow_dir / STOPPED / f"{str(stream).replace('>', '-to-')}.json"
            self._recall(stream)
        arguments = (stream, connector, flow_dir, waiting)
        thread = LastingThread(self._work, f"sink-{stream}", arguments)
        self._threads.append(thread)
        thread.start()

    def deliver(self, step: Deliver) -> None:
        waiting = self._queues.get(step.header.stream.home)
        if waiting is not None:
            waiting.put(step)

    def busy_s(self) -> dict[StreamId, float]:
        """For how long each sink has not come back from one attempt to hand it a unit. May be called by any thread."""
        now = time.monotonic()
        return {stream: max(0.0, now - began) for stream, began in list(self._began_s.items())}

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

    def _work(
        self, stream: StreamId, connector: SinkConnector, flow_dir: Path, waiting: queue.Queue[Deliver | None]
    ) -> None:
        writer = self._opened(stream, connector, flow_dir, waiting)
        if writer is None:
            return
        while (job := waiting.get()) is not None:
            self._deliver(writer, job)
        try:
            writer.close()
        except BaseException:
            log.exception("the sink of %s did not close cleanly", stream)

    def _opened(
        self, stream: StreamId, connector: SinkConnector, flow_dir: Path, waiting: queue.Queue[Deliver | None]
    ) -> SinkWriter | None:
        """Open a sink, trying until that succeeds; None if the stream is closed before. Units wait meanwhile."""
        failing = ""
        while not self._closed.is_set() and self._queues.get(stream) is waiting:
            self._began_s[stream] = time.monotonic()
            try:
                writer = connector.open(flow_dir)
            except BaseException as error:
                reason = reason_of(error)
            else:
                if failing:
                    self._tell(SinkOpened(stream))
                return writer
            finally:
                self._began_s.pop(stream, None)
            if failing != reason:
                failing = reason
                self._tell(SinkUnopened(stream, reason))
            self._closed.wait(RETRY_S)
        return None

    def _deliver(self, writer: SinkWriter, job: Deliver) -> None:
        header, attempts = job.header, Attempts(self._refusals, passing=is_passing_at_sink)
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
                reason = _said(failure)
                if not header.stable:
                    # A stable unit will take its place, and must not wait behind it.
                    log.warning("a tentative unit of %s is left out: %s", header.stream, reason)
                    self._post(SinkDelivered(header.stream, header.number, written=False))
                    return
                if job.once:
                    if not is_passing_at_sink(failure):
                        self._keep(header, table, masked(reason_of(failure)))
                    self._post(SinkFailed(header.stream, header.number, reason))
                    return
                if attempts.failed(failure):
                    self._set_aside(writer, header, table, attempts.reason)
                    return
            log.warning("unit %d of %s not delivered, trying again: %s", header.number, header.stream, reason)
            self._closed.wait(RETRY_S)

    def _hand_over(self, writer: SinkWriter, header: UnitHeader, table: pa.Table) -> tuple[bool, BaseException | None]:
        """Give a unit to its sink: whether that wrote it, and how the sink failed, None if it has the unit.

        A sink may be a user's code, and use native libraries whose panics are no `Exception`.
        """
        stream = header.stream.home
        self._began_s[stream] = time.monotonic()
        try:
            written = writer.deliver(header, table) if header.stable else writer.deliver_tentative(header, table)
        except BaseException as error:
            return False, error
        finally:
            self._began_s.pop(stream, None)
        if written:
            self.writes[header.stream.home] += 1
        return bool(written), None

    # --- refused units ----------------------------------------------------------------------------------

    def _set_aside(self, writer: SinkWriter, header: UnitHeader, table: pa.Table, reason: str) -> None:
        """Keep the rows of a unit that its sink refuses, and continue after it, or stop."""
        stream, marker = header.stream, self._markers.get(header.stream)
        self._keep(header, table, reason)
        if marker is not None:
            self._remember(marker, header.number, reason)
        else:
            self._advance(writer, header, table.slice(0, 0))
        self._post(SinkRefused(stream, header.number, reason, stops=marker is not None))

    def _keep(self, header: UnitHeader, table: pa.Table, reason: str) -> None:
        self._letters().write_unit(header.stream, header.number, table, reason)

    def _advance(self, writer: SinkWriter, header: UnitHeader, empty: pa.Table) -> None:
        """Let the ledger of a sink know a unit without its rows. What a sink refuses even so, it need not know."""
        while not self._closed.is_set():
            _, failure = self._hand_over(writer, header, empty)
            if failure is None or not is_passing_at_sink(failure):
                return
            log.warning("unit %d of %s, without rows, not delivered: %s", header.number, header.stream, _said(failure))
            self._closed.wait(RETRY_S)

    def _remember(self, marker: Path, number: int, reason: str) -> None:
        try:
            marker.parent.mkdir(mode=0o700, exist_ok=True)
            replace_file(marker, sealed(_STOP.encode(_Stop(number, reason))))
        except OSError:
            log.exception("that a sink has stopped cannot be kept; a restart of this node begins with it again")

    def _recall(self, stream: StreamId) -> None:
        """A sink that stopped in an earlier process stays so."""
        marker = self._markers[stream]
        try:
            found = _STOP.decode(unsealed(marker, marker.read_bytes(), STAYS))
            number, reason = found.number, found.reason
        except FileNotFoundError:
            return
        except Damaged as error:
            number, reason = 1, str(error)
        except (OSError, Undecodable) as error:
            number, reason = 1, f"{marker} cannot be read ({error}). {STAYS}"
        self._post(SinkRefused(stream, number, reason, stops=True))


def _said(failure: BaseException) -> str:
    """The class of a failure and its message; a user's class may fail to make one."""
    try:
        return f"{type(failure).__name__}: {failure}"
    except BaseException:
        return type(failure).__name__
