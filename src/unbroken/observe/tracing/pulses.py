"""The spans of a pulse on its way through the flow, as one node sees it.

cut                      the leader of the ingress asks the sources, the ingress agrees, units are written: the root
  read <source>          each member of the ingress has the units of a source
    receive <segment>    the first copy of a unit came to a replica and is kept
      micro-batch <segment>   from the gate's answer to Spark until the micro-batch is committed
        offer <segment>       the result is there, and sent to whoever waits for it
          receive ...         and so on, on other nodes
          deliver <sink>      the result is handed to a sink
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from unbroken.observe.tracing.ids import Ids, Sampling, SpanPlace
from unbroken.observe.tracing.spans import AttributeValue, Moment, Recent, Seen, Span
from unbroken.protocol.events import (
    GateAsked,
    Produced,
    SinkDelivered,
    SinkFailed,
    SinkRefused,
    SourcesPolled,
    UnitArrived,
)
from unbroken.protocol.instructions import AnswerGate, CommitEntry, Deliver, SendUnit, StoreUnit
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId, home_of
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.units import UnitHeader

Spent = Callable[[ReplicaId, int], Mapping[str, float]]
"""Where the time of a replica's micro-batch went, in ms, as Spark says; empty if Spark does not say any more."""


@dataclass(frozen=True)
class _Receipt:
    """The first copy of a unit that a replica took."""

    place: SpanPlace
    pulse: int
    time_ns: int


@dataclass
class _Batch:
    """A micro-batch that Spark was given and has not committed."""

    replica: ReplicaId
    number: int
    start_ns: int
    produced_ns: int = 0
    units: tuple[tuple[int, int], ...] = ()
    """The sampled ones of its results: pulse and number."""
    rows: int = 0


@dataclass
class _Inputs:
    """What a shard's replica here has taken of pulses that it has yet to process."""

    receipts: Recent[tuple[StreamId, int], _Receipt] = field(default_factory=lambda: Recent(256))
    copies: Recent[tuple[StreamId, int, NodeId], Moment] = field(default_factory=lambda: Recent(256))

    def of(self, pulse: int) -> list[_Receipt]:
        return sorted((one for one in self.receipts.values() if one.pulse == pulse), key=lambda one: one.time_ns)

    def forget(self, pulse: int) -> None:
        for unit in [unit for unit, receipt in self.receipts.items() if receipt.pulse <= pulse]:
            del self.receipts[unit]
            for copy in [copy for copy in self.copies if copy[:2] == unit]:
                del self.copies[copy]


class PulseSpans:
    """Makes spans of what one node sees. Everything it remembers is bounded, and may be missing."""

    def __init__(self, me: NodeId, ids: Ids, sampling: Sampling, spent: Spent, separate: bool = False) -> None:
        self._me = me
        self._ids = ids
        self._sampling = sampling
        self._spent = spent
        self._separate = separate
        self._answered: Recent[int, int] = Recent()
        self._agreed: Recent[int, int] = Recent()
        self._rooted: Recent[int, None] = Recent()
        self._tickets: Recent[int, tuple[ReplicaId, int]] = Recent()
        self._batches: Recent[tuple[ReplicaId, int], _Batch] = Recent()
        self._inputs: Recent[tuple[str, int], _Inputs] = Recent()
        self._deliveries: Recent[tuple[StreamId, int], tuple[int, Deliver]] = Recent()

    def see(self, seen: Seen, incidents: tuple[SpanPlace, ...] = ()) -> list[Span]:
        """The spans that have ended with this; ``incidents`` are what the flow has to deal with meanwhile."""
        out: list[Span] = []
        match seen.event:
            case UnitArrived():
                out += self._arrived(seen, seen.event)
            case GateAsked():
                out += self._committed(seen, seen.event)
            case Produced() if seen.event.replica.shard == INGRESS:
                out += self._read(seen, seen.event, incidents)
            case Produced():
                out += self._produced(seen, seen.event)
            case SinkDelivered(stream, number):
                out += self._delivered(seen, stream, number, written=seen.event.written)
            case SinkFailed(stream, number, reason) | SinkRefused(stream, number, reason):
                out += self._delivered(seen, stream, number, failure=reason)
            case SourcesPolled(pulse):
                self._note(self._answered, pulse, seen.began_ns)
        for step in seen.steps:
            match step:
                case AnswerGate(ticket, offset):
                    self._release(ticket, offset, seen.ended_ns)
                case CommitEntry(entry):
                    self._note(self._agreed, entry.pulse, seen.began_ns)
                case Deliver():
                    self._deliveries[step.header.stream, step.header.number] = (seen.ended_ns, step)
        return out

    # --- sources ---------------------------------------------------------------------------------------

    def _note(self, table: Recent[int, int], pulse: int, time_ns: int) -> None:
        # Where sources are cut each by itself, the log counts its entries, and their units count something else.
        if pulse and not self._separate and self._sampling.takes(pulse):
            table[pulse] = time_ns

    def _read(self, seen: Seen, event: Produced, incidents: tuple[SpanPlace, ...]) -> list[Span]:
        """Units of sources are written; the leader also tells how the pulse came to be."""
        out: list[Span] = []
        for pulse in sorted({header.pulse for header in event.headers if self._sampling.takes(header.pulse)}):
            headers = [header for header in event.headers if header.pulse == pulse]
            agreed_ns = self._agreed.pop(pulse, seen.began_ns)
            answered_ns = self._answered.pop(pulse, None)
            rows = _rows_by_source(headers)
            if seen.leading and pulse not in self._rooted:
                self._rooted[pulse] = None
                out.append(self._root(seen, headers[0], rows, agreed_ns, answered_ns, incidents))
            for source, count in rows.items():
                units = [header for header in headers if header.stream.producer == source]
                out.append(
                    Span(
                        f"read {source.part}",
                        self._ids.offer(pulse, source, units[0].number, self._me),
                        self._ids.cut(pulse),
                        min(agreed_ns, seen.began_ns),
                        seen.ended_ns,
                        {**_about(units[0]), **_sizes(units), "unbroken.rows": count, "unbroken.source": source.part},
                        kind="producer",
                    )
                )
        return out

    def _root(
        self,
        seen: Seen,
        header: UnitHeader,
        rows: Mapping[ShardId, int],
        agreed_ns: int,
        answered_ns: int | None,
        incidents: tuple[SpanPlace, ...],
    ) -> Span:
        moments = [] if answered_ns is None else [Moment("sources have answered", answered_ns)]
        if agreed_ns < seen.began_ns:
            moments.append(Moment("agreed by the ingress", agreed_ns))
        return Span(
            "cut",
            self._ids.cut(header.pulse),
            None,
            min(header.cut_ms * 1_000_000, seen.ended_ns),
            seen.ended_ns,
            {
                "unbroken.pulse": header.pulse,
                "unbroken.rows": sum(rows.values()),
                "unbroken.sources": tuple(source.part for source in rows),
                "unbroken.generation": header.generation,
            },
            tuple(moments),
            incidents,
        )

    # --- replicas --------------------------------------------------------------------------------------

    def _arrived(self, seen: Seen, event: UnitArrived) -> list[Span]:
        header = event.header
        if not self._sampling.takes(header.pulse):
            return []
        unit = (header.stream, header.number)
        inputs = self._inputs_of(header.stream.consumer)
        kept = next((step for step in seen.steps if isinstance(step, StoreUnit) and step.header == header), None)
        if kept is None:
            if unit in inputs.receipts:
                about: dict[str, AttributeValue] = {
                    "unbroken.stream": str(header.stream),
                    "unbroken.sender": event.sender,
                }
                inputs.copies[(*unit, event.sender)] = Moment("another copy came", seen.began_ns, about)
            return []
        place = self._ids.receive(header.pulse, *unit, self._me)
        inputs.receipts[unit] = _Receipt(place, header.pulse, seen.ended_ns)
        attributes = {
            **_about(header),
            **_sizes([header]),
            "unbroken.stream": str(header.stream),
            "unbroken.shard": str(header.stream.consumer),
            "unbroken.sender": event.sender,
            "unbroken.replica": str(kept.replica),
        }
        parent = self._ids.offer(header.pulse, header.stream.producer, header.number, event.sender)
        name = f"receive {header.stream.consumer.part}"
        return [Span(name, place, parent, seen.began_ns, seen.ended_ns, attributes, kind="consumer")]

    def _release(self, ticket: int, offset: int, time_ns: int) -> None:
        """Spark is told how far its next micro-batch goes; each of its sources asks, and is told the same."""
        replica, start = self._tickets.pop(ticket, (None, 0))
        if replica is not None and offset > start and (replica, offset) not in self._batches:
            self._batches[replica, offset] = _Batch(replica, offset, time_ns)

    def _produced(self, seen: Seen, event: Produced) -> list[Span]:
        units: dict[tuple[int, int], list[UnitHeader]] = {}
        for header in event.headers:
            if self._sampling.takes(header.pulse):
                units.setdefault((header.pulse, header.number), []).append(header)
        batch = self._batches.get((event.replica, event.number))
        if batch is not None:
            batch.produced_ns, batch.units = seen.began_ns, tuple(units)
            batch.rows = sum(_rows_by_source(event.headers).values())
        out: list[Span] = []
        shard = event.replica.shard
        for (pulse, number), headers in units.items():
            sent = {step.to for step in seen.steps if isinstance(step, SendUnit) and step.header in headers}
            attributes = {
                **_about(headers[0]),
                **_sizes(headers),
                "unbroken.replica": str(event.replica),
                "unbroken.sent_to": tuple(sorted(sent)),
            }
            place = self._ids.offer(pulse, shard, number, self._me)
            parent = self._ids.micro_batch(pulse, shard, number, self._me)
            times = (seen.began_ns, seen.ended_ns)
            out.append(Span(f"offer {shard.part}", place, parent, *times, attributes, kind="producer"))
        return out

    def _committed(self, seen: Seen, event: GateAsked) -> list[Span]:
        """Spark asks for what follows micro-batch ``start``: it is committed."""
        self._tickets[event.ticket] = (event.replica, event.start)
        batch = self._batches.pop((event.replica, event.start), None)
        for key in [key for key in self._batches if key[0] == event.replica and key[1] < event.start]:
            del self._batches[key]  # Its end was not noted.
        if batch is None or not batch.units:
            return []
        spent = self._spent(batch.replica, batch.number)
        split: dict[str, AttributeValue] = {f"unbroken.spark.{part}_ms": took for part, took in spent.items()}
        inputs = self._inputs_of(batch.replica.shard)
        out = [self._batch_span(seen, batch, pulse, number, inputs, split) for pulse, number in batch.units]
        inputs.forget(max(pulse for pulse, _ in batch.units))
        return out

    def _batch_span(
        self, seen: Seen, batch: _Batch, pulse: int, number: int, inputs: _Inputs, split: Mapping[str, AttributeValue]
    ) -> Span:
        receipts = inputs.of(pulse)
        units = {unit for unit, receipt in inputs.receipts.items() if receipt.pulse == pulse}
        moments = [moment for copy, moment in inputs.copies.items() if copy[:2] in units]
        moments.append(Moment("the result is written", batch.produced_ns))
        shard = batch.replica.shard
        attributes: dict[str, AttributeValue] = {
            "unbroken.pulse": pulse,
            "unbroken.unit": number,
            "unbroken.shard": str(shard),
            "unbroken.replica": str(batch.replica),
            "unbroken.rows": batch.rows,
            **split,
        }
        return Span(
            f"micro-batch {shard.part}",
            self._ids.micro_batch(pulse, shard, number, self._me),
            # The unit that was waited for last is what it follows from.
            receipts[-1].place if receipts else self._ids.cut(pulse),
            batch.start_ns,
            max(seen.began_ns, batch.start_ns),
            attributes,
            tuple(sorted(moments, key=lambda moment: moment.time_ns)),
            tuple(receipt.place for receipt in receipts[:-1]),
        )

    def _inputs_of(self, shard: ShardId) -> _Inputs:
        """A fork's input is that of the replica it stands in for."""
        key = (home_of(shard.part), shard.index)
        found = self._inputs.get(key)
        if found is None:
            found = self._inputs[key] = _Inputs()
        return found

    # --- sinks -----------------------------------------------------------------------------------------

    def _delivered(
        self, seen: Seen, stream: StreamId, number: int, written: bool = False, failure: str = ""
    ) -> list[Span]:
        start_ns, step = self._deliveries.pop((stream, number), (0, None))
        if step is None:
            return []
        header = step.header
        attributes = {
            **_about(header),
            **_sizes([header]),
            "unbroken.sink": stream.consumer.part,
            "unbroken.replica": str(step.replica),
            "unbroken.written": written,
        }
        span = Span(
            f"deliver {stream.consumer.part}",
            self._ids.delivery(header.pulse, stream, number, self._me),
            self._ids.offer(header.pulse, stream.producer, number, self._me),
            start_ns,
            max(seen.began_ns, start_ns),
            attributes,
            kind="client",
        )
        return [replace(span, failure=failure)]


def _about(header: UnitHeader) -> dict[str, AttributeValue]:
    out: dict[str, AttributeValue] = {
        "unbroken.pulse": header.pulse,
        "unbroken.unit": header.number,
        "unbroken.shard": str(header.stream.producer),
    }
    return out if header.stable else {**out, "unbroken.tentative": True}


def _sizes(headers: list[UnitHeader]) -> dict[str, AttributeValue]:
    return {
        "unbroken.rows": sum(_rows_by_source(headers).values()),
        "unbroken.bytes": sum(header.size for header in headers),
    }


def _rows_by_source(headers: list[UnitHeader] | tuple[UnitHeader, ...]) -> dict[ShardId, int]:
    """The rows that each producer has made: as many as it has for the consumer that is given most of them."""
    parts: dict[ShardId, dict[str, int]] = {}
    for header in headers:
        taken = parts.setdefault(header.stream.producer, {})
        part = header.stream.consumer.part
        taken[part] = taken.get(part, 0) + header.digest.rows
    return {producer: max(taken.values()) for producer, taken in parts.items()}
