"""What a person sees of a running flow in the terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from unbroken.connectors.files.sinks import Console as ConsoleSink
from unbroken.connectors.push.source import Push
from unbroken.errors import UnbrokenError
from unbroken.local.announcements import Teller, teller_of
from unbroken.local.announcements import line as _line
from unbroken.observe.status.node import IngressStatus, JoinStatus, NodeStatus, ReplicaStatus
from unbroken.observe.status.notices import reports_of
from unbroken.observe.status.summary import in_words, span, summarize
from unbroken.observe.status.traffic import flow_overhead
from unbroken.protocol.combinations import numbered
from unbroken.protocol.values.consistency import Consistency
from unbroken.protocol.values.ids import ReplicaId, ShardId, StreamId, segment_of
from unbroken.protocol.values.layout import Topology
from unbroken.protocol.values.notices import Notice, Reported

if TYPE_CHECKING:
    from unbroken.client.subscription import Subscription
    from unbroken.local.launcher import LocalCluster

LOOK_S = 1.0
LATEST = 8
"""Reports shown below the table."""

LINGER_S = 10.0
"""How long a flow that has ended waits for its subscribers to take the last results."""


def status_table(flow: str, states: Sequence[NodeStatus]) -> Table:
    """Nodes, replicas, units, lag and latency."""
    # Without lines all around it fits into 80 columns; names are what one looks for.
    table = Table(title=flow, box=SIMPLE_HEAD, pad_edge=False)
    for column in ("node", "replica", "state", "units", "behind", "latency", "micro-batch"):
        table.add_column(column, no_wrap=column in ("node", "replica", "latency"))
    for state in states:
        if not state.running:
            why = f": {escape(state.reason)}" if state.reason else ""
            table.add_row(state.node, "", f"[red]{state.state}[/]{why}", "", "", "", "")
        for replica in state.replicas:
            took = None if replica.batch is None else replica.batch.duration_ms.get("triggerExecution")
            table.add_row(
                state.node,
                replica.replica,
                escape(_replica_state(replica)),
                str(replica.produced),
                _behind(replica),
                "" if replica.latency_ms is None else span(replica.latency_ms),
                "" if took is None else span(took),
            )
        for name, join in state.joining.items():
            table.add_row(state.node, name, f"[yellow]joins: {join.phase.value}[/]", "", _fetched(join), "", "")
        for name, version in state.held.items():
            table.add_row(state.node, name, "holds a copy", str(max(0, version)), "", "", "")
        if state.ingress is not None:
            table.add_row(state.node, "ingress", *_ingress(state.ingress))
        if state.push:
            table.add_row(state.node, "push", f"http://{state.push}", "", "", "", "")
    return table


def _ingress(ingress: IngressStatus) -> tuple[str, ...]:
    """Role, pulse, pulses in flight, no latency, and pace of a member of the ingress."""
    role = "leads the pulse" if ingress.leading else "follows"
    role += "" if ingress.reading else ", paused"
    pace = f"{ingress.period_ms:.0f} ms pulse" if ingress.leading else ""
    behind = f"{ingress.in_flight} in flight" if ingress.leading else ""
    return role, str(ingress.pulse), behind, "", pace


def _behind(replica: ReplicaStatus) -> str:
    """How far a replica is behind the newest input, in units and in time."""
    late = f", {span(replica.lag_ms)}" if replica.lag_ms else ""
    return f"{replica.lag_units} {'unit' if replica.lag_units == 1 else 'units'}{late}"


def _fetched(join: JoinStatus) -> str:
    return f"{(join.fetched_bytes or 0) * 100 // join.total_bytes} % copied" if join.total_bytes else ""


def _replica_state(replica: ReplicaStatus) -> str:
    if replica.reason:
        return f"stopped: {replica.reason}"
    consistency = replica.consistency
    if consistency is not None and consistency.state is Consistency.UP_FAILURE:
        lacking = ", ".join(consistency.lacking) or "input"
        return f"lacks {lacking}, {'waits' if consistency.fork is None else 'tentative'}"
    if consistency is not None and consistency.state is Consistency.STABILIZATION:
        return "puts tentative results right"
    return replica.state.value


def status_view(flow: str, states: Sequence[NodeStatus], *, zookeeper_away: bool = False) -> Group:
    """The table, what there is to know at a glance, what availability costs, and the latest reports of the nodes."""
    lines = [*in_words(summarize(states)), *_cost(states)]
    lines += [_line(report) for report in _reports(states)[-LATEST:]]
    if zookeeper_away:
        lines.append("ZooKeeper is away; these are the nodes that were there last")
    return Group(status_table(flow, states), *(Text(line) for line in lines))


def greet(cluster: LocalCluster, out: Console | Teller, page: str | None = None) -> None:
    """Say where the flow is found, and its page, if it has one."""
    teller = teller_of(out)

    def say(text: str, **facts: Any) -> None:
        teller.say("info", text, **facts)

    address, directory = cluster.zookeeper.address, str(cluster.directory)
    facts = {"flow": cluster.flow.name, "nodes": cluster.count, "zookeeper": address, "directory": directory}
    teller.say("ready", f"{cluster.count} nodes run {cluster.flow.name}; ZooKeeper at {address}", **facts)
    if page is not None:
        say(f"the page of the flow is at {page}", page=page)
    say(f"to see how they are: unbroken status --watch --dir {directory}")
    states = cluster.status()
    code = next((state.code for state in states if state.code is not None), None)
    if code is not None and not code.as_given:
        say(
            f"generation {code.generation} of the code runs, as {code.file} was when the flow was upgraded; "
            f"{cluster.flow_file} differs from it. To go over to that, use unbroken upgrade {cluster.flow_file}"
        )
    for state in states:
        if state.metrics:
            say(f"metrics of {state.node} are at http://{state.metrics}/metrics", metrics=state.metrics)
    pause = next((state.pause for state in states if state.pause is not None), None)
    if pause is not None:
        say("the flow is paused; to let its sources be read again: unbroken resume", pause=to_builtins(pause))
    addresses = [state.push for state in states if state.push]
    for name, source in cluster.flow.sources.items():
        if isinstance(source.connector, Push):
            where = ", ".join(f"http://{address}/push/{name}" for address in addresses)
            say(f"rows for {name} are taken at {where}; the token is in {cluster.directory / 'token'}")


def follow(cluster: LocalCluster, out: Console | Teller) -> None:
    """Print what happens, and the rows of console sinks, until a bounded flow has ended.

    Raises UnbrokenError when no node is left.
    """
    consoles: list[tuple[ConsoleSink, Subscription]] = [
        (sink.connector, cluster.subscribe(name))
        for name, sink in cluster.flow.sinks.items()
        if isinstance(sink.connector, ConsoleSink)
    ]
    teller = teller_of(out)
    told: set[Reported] = set()
    looked = 0.0
    linger: float | None = None
    try:
        while True:
            for console, subscription in consoles:
                _show(console, subscription, teller, 0.05)
            if time.monotonic() - looked < LOOK_S:
                if not consoles:
                    time.sleep(0.1)
                continue
            looked = time.monotonic()
            states = _look(cluster, told, teller)
            if has_ended(cluster.topology, states) and all(subscription.ended for _, subscription in consoles):
                linger = linger or looked + LINGER_S
                if not readers_behind(states) or looked > linger:
                    break
        for console, subscription in consoles:
            while _show(console, subscription, teller, 0):
                pass
        teller.say("ended", "the sources have ended and everything is delivered")
    finally:
        for _, subscription in consoles:
            subscription.close()


def _show(console: ConsoleSink, subscription: Subscription, teller: Teller, timeout_s: float) -> bool:
    """Print the next result, if there is one."""
    result = subscription.next(timeout_s)
    if result is not None and result.table.num_rows:
        teller.rows(console, result)
    return result is not None


def _look(cluster: LocalCluster, told: set[Reported], teller: Teller) -> list[NodeStatus]:
    """Tend the processes, ask the nodes, and tell what has not been told."""
    for notice in cluster.tend():
        teller.news(by_run(notice))
    if cluster.hopeless():
        raise UnbrokenError(f"no node of {cluster.flow.name} is left; their logs are in {cluster.logs}")
    states = cluster.status()
    for report in [report for report in _reports(states) if report not in told]:
        told.add(report)
        teller.news(report)
    return states


def by_run(notice: Notice) -> Reported:
    """A notice of `unbroken run` itself, at this moment."""
    return Reported(int(time.time() * 1000), "run", notice)


def _reports(states: Sequence[NodeStatus]) -> list[Reported]:
    """What the nodes report, oldest first."""
    return sorted((report for state in states for report in reports_of(state)), key=lambda report: report.time_ms)


def _cost(states: Sequence[NodeStatus]) -> list[str]:
    """What has been sent for availability since the nodes were started, by all of them and by each."""
    whole = flow_overhead(states)
    if whole is None:
        return []
    each = [f"{state.node} {state.overhead:.2f}" for state in states if state.overhead is not None]
    return [f"bytes for availability per byte of data: {whole:.2f} ({', '.join(each)})"]


def has_ended(topology: Topology, states: Sequence[NodeStatus]) -> bool:
    """Whether some replica of every shard has produced the final pulse, and it is in every sink nodes write to.

    Where leaders or event times order, units are not numbered by the log's pulses, and a replica that has produced its
    final unit says so.
    """
    ends = [s.ingress.pulse for s in states if s.ingress is not None and s.ingress.ended]
    if not ends:
        return False
    produced: dict[ShardId, int] = {}
    delivered: dict[StreamId, int] = {}
    finals: dict[ShardId, int] = {}
    for state in states:
        for replica in state.replicas:
            shard = ReplicaId.parse(replica.replica).shard
            produced[shard] = max(produced.get(shard, 0), replica.produced)
            if replica.final is not None:
                finals[shard] = replica.final
        for name, sink in state.sinks.items():
            stream = StreamId.parse(name)
            delivered[stream] = max(delivered.get(stream, 0), sink.delivered)
    written = set(topology.sinks) - topology.client_sinks

    def last(shard: ShardId) -> float:
        return max(ends) if numbered(topology) else finals.get(shard, float("inf"))

    shards = [shard for part in topology.segments for shard in topology.shards(part)]
    return all(_come(produced, shard) >= last(shard) for shard in shards) and all(
        min((n for s, n in delivered.items() if _same(s.producer, stream.producer)), default=0) >= last(stream.producer)
        for stream in topology.streams
        if stream.consumer.part in written
    )


def _come(produced: Mapping[ShardId, int], shard: ShardId) -> int:
    """How far a shard has come with whatever generation of its code runs."""
    return min((number for other, number in produced.items() if _same(other, shard)), default=0)


def _same(one: ShardId, other: ShardId) -> bool:
    """Whether two shards run the same segment, perhaps of different generations."""
    return segment_of(one.part) == segment_of(other.part) and one.index == other.index


def readers_behind(states: Sequence[NodeStatus]) -> bool:
    """Whether a subscriber of a client sink has yet to take a result that is there."""
    last: dict[str, int] = {}
    taken: dict[tuple[str, str], int] = {}
    for state in states:
        for stream, box in state.outboxes.items():
            last[stream] = max(last.get(stream, 0), box.last)
            for reader, acked in box.readers.items():
                taken[stream, reader] = max(taken.get((stream, reader), 0), acked)
    return any(acked < last[stream] for (stream, _), acked in taken.items())
