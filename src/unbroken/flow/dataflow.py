"""What a user declares: a dataflow of sources, segments and sinks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from unbroken.connectors.base import SinkConnector, SourceConnector
from unbroken.data.sharding import EVERYTHING
from unbroken.errors import FlowError, Problem
from unbroken.flow.availability import WAIT, Availability
from unbroken.flow.settings import Settings, load_settings
from unbroken.protocol.values.strategy import Ha, Strategy
from unbroken.quantities import milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    SegmentFunction = Callable[..., DataFrame]

OUTPUT_MODES = ("append", "update")
ROUTINGS = ("hashing", "random", "primary")
ORDERINGS = ("pulse", "leader", "bucket")
HA = tuple(ha.value for ha in Ha)
_OPTIONS = ("replicas", "ha", "ordering", "availability")
NAME_HELP = "use letters, digits, '-' and '_', starting with a letter"


@dataclass(frozen=True)
class Source:
    """A named input of the dataflow.

    ``event_time`` names the column by which rows are put into buckets; a row may come up to ``disorder`` later than one
    that has a later time.
    """

    name: str
    connector: SourceConnector
    where: str
    event_time: str | None = None
    disorder: str | float = 0


@dataclass(frozen=True)
class Redundancy:
    """How a segment is to be kept available, as its author wrote it; what was left out is None."""

    ha: str = Ha.ACTIVE.value
    replicas: int | None = None
    k_safety: int | None = None
    checkpoint_every: int | None = None
    state_horizon: str | float | None = None

    @property
    def backups(self) -> int:
        if self.k_safety is not None:
            return self.k_safety
        return 0 if self.replicas is None else self.replicas - 1

    def strategy(self) -> Strategy:
        """The same, once it is known to make sense."""
        horizon = 0.0 if self.state_horizon is None else float(milliseconds(self.state_horizon))
        return Strategy(Ha(self.ha), self.backups, self.checkpoint_every or 1, horizon)


@dataclass(frozen=True)
class Segment:
    """A function from streaming DataFrames to one streaming DataFrame, run in ``shards`` times some replicas.

    ``shard_by`` maps each input to the columns whose hash decides the shard of a row; it is empty with one
    shard. ``cut_time`` names a timestamp column added to every input: the time at which the sources cut the
    pulse, the same on every replica. ``routing`` says how rows are split among shards that share the load and stand in
    for each other, ``ordering`` who decides which units a micro-batch takes. ``availability`` is what its author
    wrote, and None for one that waits for input that is missing.
    """

    name: str
    function: SegmentFunction
    inputs: tuple[str, ...]
    shard_by: Mapping[str, tuple[str, ...]]
    shards: int
    redundancy: Redundancy
    output_mode: str
    cut_time: str | None
    where: str
    routing: str | None = None
    ordering: str = "pulse"
    availability: Availability | str | None = None

    def strategy(self) -> Strategy:
        return replace(self.redundancy.strategy(), shares=self.routing is not None)


ON_REFUSAL = ("dead-letter", "stop")
"""What may happen to a unit that a sink refuses."""


@dataclass(frozen=True)
class Sink:
    """A named output of the dataflow."""

    name: str
    input: str
    connector: SinkConnector
    where: str
    on_refusal: str = "dead-letter"


@dataclass
class Dataflow:
    """A DAG of sources, segments and sinks.

    Parameters
    ----------
    name
        Names the flow in ZooKeeper, logs and directories.
    replicas
        Copies of every shard unless a segment says otherwise; 2 survives the loss of any one node.
    ha
        How segments are kept available unless they say otherwise: 'active', 'active-standby', 'passive', 'upstream'
        or 'none'.
    ordering
        Who decides which units a micro-batch takes, unless segments say otherwise: the 'pulse' of the sources, or a
        'leader' among the replicas. Or, for all of them, 'bucket': the event time of rows.
    availability
        The bound on the delay of results while input is missing, unless segments say otherwise; without one, they wait.
    **settings
        See `unbroken.flow.settings.Settings`.

    Examples
    --------
    >>> flow = Dataflow("clicks", nodes=2)
    >>> clicks = flow.source("clicks", Files("in/", format="json", schema="user string, url string"))
    >>> @flow.segment(clicks, shard_by=["user"], shards=2, output_mode="update")
    ... def per_user(clicks):
    ...     return clicks.groupBy("user").count()
    >>> flow.sink("out", per_user, Parquet("out/"))
    """

    name: str
    replicas: int = 2
    ha: str = Ha.ACTIVE.value
    ordering: str = "pulse"
    availability: Availability | str | None = None
    settings: Settings = field(init=False)
    sources: dict[str, Source] = field(init=False, default_factory=dict)
    segments: dict[str, Segment] = field(init=False, default_factory=dict)
    sinks: dict[str, Sink] = field(init=False, default_factory=dict)
    where: str = field(init=False)

    def __init__(
        self,
        name: str,
        *,
        replicas: int = 2,
        ha: str = Ha.ACTIVE.value,
        ordering: str = "pulse",
        availability: Availability | str | None = None,
        **settings: Any,
    ) -> None:
        self.where = _caller()
        self.name = _checked_name(name, f"{self.where}, dataflow")
        self.replicas = replicas
        self.ha = ha
        self.ordering = ordering
        self.availability = availability
        self.settings = load_settings(f"{self.where}, dataflow {name}", settings, _OPTIONS)
        self.sources = {}
        self.segments = {}
        self.sinks = {}

    def source(
        self, name: str, connector: SourceConnector, event_time: str | None = None, disorder: str | float = 0
    ) -> Source:
        """Declare an input.

        With ``ordering="bucket"``, ``event_time`` is the timestamp column by which its rows are put into buckets, and
        ``disorder`` how much later a row may come than one with a later time (``"2s"``).
        """
        where = f"{_caller()}, source {name}"
        self._free(name, where)
        source = Source(_checked_name(name, where), connector, where, event_time, disorder)
        self.sources[name] = source
        return source

    def segment(
        self,
        *inputs: Source | Segment | str,
        name: str | None = None,
        shard_by: Sequence[str] | Mapping[str, Sequence[str]] = (),
        shards: int = 1,
        replicas: int | None = None,
        ha: str | None = None,
        k_safety: int | None = None,
        checkpoint_every: int | None = None,
        state_horizon: str | float | None = None,
        routing: str | None = None,
        ordering: str | None = None,
        availability: Availability | str | None = None,
        output_mode: str = "append",
        cut_time: str | None = None,
    ) -> Callable[[SegmentFunction], Segment]:
        """Declare a segment: ordinary PySpark from one streaming DataFrame per input to one.

        ``shard_by`` is one list of columns for all inputs, or a mapping from input name to columns when the
        inputs name their keys differently. Each of them has to be a key of every operator of the segment that brings
        rows together; without ``shard_by`` all such columns are taken. An input may be given by name, also before it is
        declared.

        ``ha`` says how the segment is kept available, ``k_safety`` how many nodes may be lost at once (``replicas`` is
        one more). ``checkpoint_every`` units a passive standby is brought up to date. ``state_horizon``, with
        ``ha="upstream"``, is how far back in time a row can still matter, where that cannot be seen from the segment.

        With ``routing`` the segment runs with ``replicas`` that share its load instead of all doing everything: rows
        are split by 'hashing' of ``shard_by``, by 'random', or all go to the 'primary'. The next one takes the place of
        one that is lost; unless ``ha`` says otherwise, with what producers kept.

        With ``ordering="leader"`` one of the replicas decides what each micro-batch takes of which input, and the
        others follow it through a log: nobody waits for the slower of two inputs, and a lost leader is replaced.

        With an ``availability`` the segment goes on without input that stays missing, with tentative results that
        stable ones replace later; ``WAIT`` is for a segment that waits where the dataflow says otherwise.
        """
        caller = _caller()
        names = tuple(part if isinstance(part, str) else part.name for part in inputs)

        def declare(function: SegmentFunction) -> Segment:
            part = name or function.__name__
            where = f"{caller}, segment {part}"
            self._free(part, where)
            sharing = routing is not None
            redundancy = self._redundancy(
                Ha.UPSTREAM.value if sharing and ha is None else ha,
                None if sharing else replicas,
                1 if sharing and k_safety is None and ha != Ha.NONE.value else k_safety,
                checkpoint_every,
                state_horizon,
            )
            segment = Segment(
                name=_checked_name(part, where),
                function=function,
                inputs=names,
                shard_by=dict.fromkeys(names, (EVERYTHING,)) if routing == "random" else _keys(shard_by, names),
                shards=shards if not sharing or replicas is None else replicas,
                redundancy=redundancy,
                output_mode=output_mode,
                cut_time=cut_time,
                where=where,
                routing=routing,
                ordering=self.ordering if ordering is None else ordering,
                availability=self._availability(availability),
            )
            self.segments[part] = segment
            return segment

        return declare

    def sink(
        self, name: str, segment: Segment | str, connector: SinkConnector, *, on_refusal: str = "dead-letter"
    ) -> Sink:
        """Declare an output of a segment.

        ``on_refusal`` says what happens to a unit that the sink refuses, again and again, for a reason that lies in its
        rows: with ``"dead-letter"`` the rows go to the dead letters and the next unit is delivered; with ``"stop"``
        they do so, too, and the sink takes nothing more in this run. In both cases the flow continues.
        """
        where = f"{_caller()}, sink {name}"
        self._free(name, where)
        produced_by = segment if isinstance(segment, str) else segment.name
        connector.identity = f"{self.name}/{name}"
        if on_refusal not in ON_REFUSAL:
            remedy = f"write {' or '.join(map(repr, ON_REFUSAL))}"
            raise FlowError([Problem(where, f"on_refusal is {on_refusal!r}", remedy)])
        sink = Sink(_checked_name(name, where), produced_by, connector, where, on_refusal)
        self.sinks[name] = sink
        return sink

    def _redundancy(
        self, ha: str | None, replicas: int | None, k_safety: int | None, every: int | None, horizon: str | float | None
    ) -> Redundancy:
        """What a segment leaves out is as the dataflow says; only one of the two ways to say how many is needed."""
        how = self.ha if ha is None else ha
        if replicas is None and k_safety is None and how != Ha.NONE.value:
            replicas = self.replicas
        return Redundancy(how, replicas, k_safety, every, horizon)

    def _availability(self, asked: Availability | str | None) -> Availability | str | None:
        """What a segment leaves out is as the dataflow says."""
        given = self.availability if asked is None else asked
        return None if given == WAIT else given

    def _free(self, name: str, where: str) -> None:
        if name == "ingress" or name in self.sources or name in self.segments or name in self.sinks:
            raise FlowError([Problem(where, f"the name {name!r} is taken", "give every part its own name")])


def _keys(shard_by: Sequence[str] | Mapping[str, Sequence[str]], inputs: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    if isinstance(shard_by, Mapping):
        return {name: _columns(columns) for name, columns in shard_by.items()}
    columns = _columns(shard_by)
    return dict.fromkeys(inputs, columns) if columns else {}


def _columns(columns: Sequence[str]) -> tuple[str, ...]:
    """One column may be given without a list around it: a string is a sequence, too, but of letters."""
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _checked_name(name: str, where: str) -> str:
    if not isinstance(name, str) or re.fullmatch("[A-Za-z][A-Za-z0-9_-]*", name) is None:
        raise FlowError([Problem(where, f"{name!r} cannot be a name", NAME_HELP)])
    return name


def _caller() -> str:
    """File and line of the user's declaration."""
    here = __file__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == here:
        frame = frame.f_back
    if frame is None:
        return "?"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
