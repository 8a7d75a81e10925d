"""The story of a run: what happened to the units and replicas that a failure is about, in words."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from typing import Any

from unbroken.errors import InvariantViolation
from unbroken.observe.notices import line_of
from unbroken.protocol import events, instructions, messages
from unbroken.protocol.events import Event
from unbroken.protocol.values.ids import NodeId, ReplicaId, ShardId, StreamId
from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.units import UnitHeader

LIMIT = 400_000
"""Events and instructions that are remembered; a run that fails tells of the last ones."""

MOST = 120
"""Lines of a story about units and replicas."""

FEW = 4
"""Members of a collection that are told of."""

ACKNOWLEDGED = 3
"""Units before the one that is acknowledged which an acknowledgement is taken to be about: not all are told of."""

UNTOLD = (
    events.Tick,
    events.GateAsked,
    events.SourcesPolled,
    instructions.AnswerGate,
    instructions.PollSources,
    instructions.PersistEntry,
    instructions.CommitEntry,
    instructions.Report,
    instructions.Send,
)
"""What says nothing of a unit, or is told elsewhere."""


@dataclass(frozen=True)
class Line:
    """One thing that happened, in words, with the units that it is about (``first`` to ``last``; 0: none)."""

    text: str
    names: tuple[str, ...]
    first: int = 0
    last: int = 0


@dataclass(frozen=True)
class Unrest:
    """What a flow still waits for: in words, and as a failure says what it is about."""

    text: str
    about: tuple[object, ...] = ()
    unit: int = 0

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Subject:
    """What a failure is about: names, the shards of these, and the unit, if it is about one (0: it is not)."""

    names: frozenset[str]
    shards: frozenset[str]
    unit: int

    @classmethod
    def of(cls, error: BaseException) -> Subject:
        return cls.about(error.about, error.unit) if isinstance(error, InvariantViolation) else cls.about(())

    @classmethod
    def about(cls, about: Iterable[object], unit: int = 0) -> Subject:
        names = frozenset(str(each) for each in about)
        shards = {shard for name in names for shard in name.partition("#")[0].split(">")}
        return cls(names, frozenset(shards), unit)

    def concerns(self, line: Line) -> bool:
        """Whether a line belongs to the story: of the unit, whatever happens to it at these shards; of what is named,
        all that is about no unit at all."""
        if self.unit and line.first:
            return line.first <= self.unit <= line.last and self._near(line)
        return any(name in self.names for name in line.names) or (not line.first and self._near(line))

    def _near(self, line: Line) -> bool:
        """Whether a line is about a shard of the subject; of streams, the ones named and what they are made from."""
        streams = {name for name in self.names if ">" in name}
        told = [name for name in line.names if ">" in name]
        if streams and told:
            makers = {name.partition(">")[0] for name in streams}
            return any(name in streams or name.partition(">")[2] in makers for name in told)
        return any(shard in self.shards for name in line.names for shard in name.partition("#")[0].split(">"))


class Story:
    """Remembers what every node was told and did, to be asked about a failure afterwards.

    It is only kept when a run is repeated for it: the same seed gives the same run, so nothing has to be written down
    as long as all is well.
    """

    def __init__(self) -> None:
        self._happened: deque[tuple[float, NodeId, Any]] = deque(maxlen=LIMIT)
        self._sentences: list[tuple[float, str]] = []

    def event(self, now_ms: float, name: NodeId, event: Event) -> None:
        if not isinstance(event, UNTOLD):
            self._happened.append((now_ms, name, event))

    def step(self, now_ms: float, name: NodeId, step: Any) -> None:
        """What a node does because of the event before."""
        if not isinstance(step, UNTOLD):
            self._happened.append((now_ms, name, step))

    def sentence(self, now_ms: float, text: str) -> None:
        self._sentences.append((now_ms, text))

    def about(self, subject: Subject, history: Iterable[Reported] = (), most: int = MOST) -> list[str]:
        """The last things that happened to what a failure is about, with every fault and decision of that time."""
        found: list[tuple[float, str]] = []
        for now_ms, name, what in reversed(self._happened):
            line = words(what)
            if subject.concerns(line):
                found.append((now_ms, f"{name} {line.text}"))
                if len(found) == most:
                    break
        found.reverse()
        since = found[0][0] if len(found) == most else 0.0
        reports = [(float(reported.time_ms), line_of(reported)) for reported in history]
        told = [(ms, f"* {text}") for ms, text in [*self._sentences, *reports] if ms >= since]
        return [f"{ms / 1000:10.3f} s  {text}" for ms, text in sorted([*told, *found], key=lambda line: line[0])]


def words(what: Any) -> Line:
    """An event or instruction in words that name units the way failures do."""
    match what:
        case events.UnitArrived(header, sender):
            return _unit(f"gets {{}} from {sender}", header)
        case events.Produced(replica, number, headers):
            return Line(f"has unit {number} of {replica} made: {_contents(headers)}", _of(replica), number, number)
        case events.SinkDelivered(stream, number):
            return Line(f"hears that the sink has unit {number} of {stream}", _of(stream), number, number)
        case events.SinkFailed(stream, number, reason) | events.SinkRefused(stream, number, reason):
            return Line(f"hears that unit {number} of {stream} failed: {reason}", _of(stream), number, number)
        case events.StateArrived(replica, state, donor):
            return Line(f"gets the state of {replica} at {state.committed} from {donor}", _of(replica))
        case events.LayoutChanged(layout):
            return Line(f"learns of layout {layout.version}", ())
        case events.Received(sender, message):
            return _received(sender, message)
        case instructions.SendUnit(to, replica, header):
            return _unit(f"sends {{}} from {replica} to {to}", header, str(replica))
        case instructions.StoreUnit(replica, header):
            return _unit(f"puts {{}} into the inbox of {replica}", header, str(replica))
        case instructions.Deliver(replica, header):
            return _unit(f"gives {{}} of {replica} to the sink", header, str(replica))
        case instructions.DropInbox(replica, stream, numbers):
            return _units("is done with {} in the inbox of " + str(replica), replica, stream, numbers)
        case instructions.DropOutbox(replica, stream, numbers):
            return _units("drops {} from the outbox of " + str(replica), replica, stream, numbers)
        case _:
            return _other("", what)


def _unit(text: str, header: UnitHeader, *names: str) -> Line:
    kind = "" if header.stable else "tentative "
    told = f"{kind}unit {header.number} of {header.stream}"
    return Line(text.format(told), (str(header.stream.home), *names), header.number, header.number)


def _units(text: str, replica: ReplicaId, stream: StreamId, numbers: Sequence[int]) -> Line:
    if not numbers:
        return Line(text.format(f"no unit of {stream}"), ())
    first, last = min(numbers), max(numbers)
    told = f"unit {first} of {stream}" if first == last else f"units {first} to {last} of {stream}"
    return Line(text.format(told), _of(stream.home, replica), first, last)


def _received(sender: NodeId, message: Any) -> Line:
    """What another node says."""
    match message:
        case messages.Subscribe(stream, subscriber, after):
            text = f"is asked by {subscriber} on {sender} for unit {after + 1} of {stream} and what follows"
            return Line(text, _of(stream.home), after + 1, after + 1)
        case messages.Ack(stream, subscriber, through, level):
            text = f"is told that {subscriber} on {sender} has unit {through} of {stream} at level {level}"
            return Line(text, _of(stream.home), max(1, through - ACKNOWLEDGED), through)
        case messages.Missing(stream, subscriber, base):
            text = f"is told by {sender} that {subscriber} cannot have unit {base} of {stream} there any more"
            return Line(text, _of(stream.home), base, base)
        case messages.DigestNote(replica, stream, number, digest):
            text = f"is told by {sender} that {replica} made {digest.exact:08x} of unit {number} of {stream}"
            return Line(text, _of(stream, replica), number, number)
        case messages.Progress() | messages.Ping() | messages.Pong():
            return Line("", ())
        case _:
            return _other(f"is told by {sender}: ", message)


def _other(before: str, what: Any) -> Line:
    """Anything else, by its fields."""
    parts, names = [], []
    for field in fields(what) if hasattr(what, "__dataclass_fields__") else ():
        value = getattr(what, field.name)
        if isinstance(value, ShardId | ReplicaId | StreamId):
            names.append(str(value))
        parts.append(f"{field.name}={_short(value)}")
    return Line(f"{before}{type(what).__name__}({', '.join(parts)})", tuple(names))


def _short(value: Any, most: int = 60) -> str:
    text = _text(value)
    return text if len(text) <= most else f"{text[:most]}..."


def _text(value: Any) -> str:
    """A value with names as they are in sentences, and a few members of every collection."""
    if isinstance(value, str | ShardId | ReplicaId | StreamId):
        return str(value)
    if isinstance(value, Mapping):
        told = [f"{_text(key)}: {_text(each)}" for key, each in islice(value.items(), FEW)]
    elif isinstance(value, list | tuple | set | frozenset):
        told = [_text(each) for each in islice(value, FEW)]
    elif is_dataclass(value) and not isinstance(value, type):
        told = [f"{field.name}={_text(getattr(value, field.name))}" for field in fields(value)]
        return f"{type(value).__name__}({', '.join(told)})"
    else:
        return repr(value)
    return f"[{', '.join([*told, *(('...',) if len(value) > FEW else ())])}]"


def _contents(headers: Iterable[UnitHeader]) -> str:
    """What was made for whom: replicas that made something else show here."""
    told = [f"{header.digest.rows} rows {header.digest.exact:08x} for {header.stream.consumer}" for header in headers]
    return ", ".join(told) or "nothing"


def _of(*names: StreamId | ReplicaId | ShardId) -> tuple[str, ...]:
    return tuple(str(name) for name in names)
