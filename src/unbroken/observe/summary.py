"""A running flow in a few sentences: what its nodes say, put together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unbroken.observe.metrics.readiness import stuck_parts
from unbroken.wording import counted

State = Mapping[str, Any]

WELL = "running"


@dataclass(frozen=True)
class Short:
    """A shard with fewer replicas than it should have, as far as its node knows since ``since_ms``."""

    shard: str
    wanted: int
    there: int
    joining: int
    since_ms: int | None


@dataclass(frozen=True)
class Summary:
    """What is worth knowing of a flow at a glance; None where no node says.

    ``lag_ms`` and ``latency_ms`` are of the results that come first: the best replica of each shard, the worst shard.
    ``gap_ms`` is since when the last shard that feeds a sink has had no result. ``stuck`` are the ingress, sources and
    sinks that make no progress on a node.
    """

    nodes: int
    running: int
    leader: str | None
    in_sync: tuple[str, ...]
    controller: str | None
    layout: int | None
    generation: int | None
    pause: Mapping[str, Any] | None
    period_ms: float | None
    in_flight: int | None
    ended: bool
    short: tuple[Short, ...]
    known: bool
    lag_ms: float | None
    latency_ms: float | None
    gap_ms: float | None
    tentative: Mapping[str, tuple[str, ...]]
    stopped: Mapping[str, str]
    stuck: Mapping[str, str]
    divergences: int

    @property
    def redundant(self) -> bool:
        """Whether every shard has all its replicas, as far as anybody knows."""
        return self.known and not self.short

    @property
    def well(self) -> bool:
        """Whether there is nothing that somebody should look at; a pause was asked for."""
        trouble = self.tentative or self.stopped or self.stuck or self.divergences
        return self.redundant and self.running == self.nodes and not trouble

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "redundant": self.redundant, "well": self.well}


def summarize(states: Sequence[State]) -> Summary:
    """Put together what the nodes of a flow say."""
    told = [state for state in states if "redundancy" in state]
    # Whoever goes by the newest layout knows best, and among those the one that makes it.
    best = max(told, key=lambda s: (s.get("layout_version", 0), _controls(s)), default={})
    leader = next((s for s in states if s.get("ingress", {}).get("leading")), None)
    ingress = {} if leader is None else leader["ingress"]
    replicas = [replica for state in states for replica in state.get("replicas", ())]
    return Summary(
        nodes=len(states),
        running=sum(1 for state in states if state["state"] == WELL),
        leader=None if leader is None else str(leader["node"]),
        in_sync=tuple(ingress.get("members", ())),
        controller=next((str(state["node"]) for state in states if _controls(state)), None),
        layout=best.get("layout_version"),
        generation=best.get("code", {}).get("generation"),
        pause=best.get("pause"),
        period_ms=ingress.get("period_ms"),
        in_flight=ingress.get("in_flight"),
        ended=any(state.get("ingress", {}).get("ended") for state in states),
        short=_short(best.get("redundancy", {})),
        known=bool(told),
        lag_ms=_worst(replicas, "lag_ms"),
        latency_ms=_worst(replicas, "latency_ms"),
        gap_ms=_worst(replicas, "gap_ms"),
        tentative=_tentative(replicas),
        stopped={str(r["replica"]): str(r["reason"]) for r in replicas if r.get("reason")},
        stuck={f"{lack.what} on {state['node']}": lack.why for state in states for lack in stuck_parts(state)},
        divergences=sum(len(state.get("divergences", ())) for state in states),
    )


def in_words(summary: Summary, now_ms: float | None = None) -> list[str]:
    """The summary for a person."""
    now = time.time() * 1000 if now_ms is None else now_ms
    out = [_redundancy(summary, now), _sources(summary, now)]
    if summary.gap_ms is not None or summary.latency_ms is not None:
        out.append(_results(summary))
    for shard, lacking in summary.tentative.items():
        without = f" without {', '.join(lacking)}" if lacking else ""
        out.append(f"tentative: results of {shard} are given out{without} and will be replaced")
    out += [f"stopped: {replica}: {reason}" for replica, reason in summary.stopped.items()]
    out += [f"stuck: {part}: {why}" for part, why in summary.stuck.items()]
    if summary.divergences:
        out.append(f"diverged: replicas disagreed {counted(summary.divergences, 'time')}; see `unbroken history`")
    if summary.layout is not None:
        keeper = f"kept by {summary.controller}" if summary.controller else "nobody keeps it at this moment"
        out.append(f"layout: version {summary.layout}, {keeper}; generation {summary.generation} of the code")
    return [sentence for sentence in out if sentence]


def span(milliseconds: float) -> str:
    """A length of time, as exact as anybody wants to know it."""
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 6_000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def since(time_ms: float, now_ms: float) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(time_ms / 1000))
    return f"since {clock} ({span(max(0.0, now_ms - time_ms))})"


def _redundancy(summary: Summary, now_ms: float) -> str:
    if not summary.known:
        return "redundancy: no node says yet how the flow is"
    if not summary.short:
        return "redundancy: every shard has all its replicas"
    parts = []
    for short in summary.short:
        comes = f", {short.joining} on the way" if short.joining else ""
        when = f" {since(short.since_ms, now_ms)}" if short.since_ms is not None else ""
        parts.append(f"{short.shard} has {short.there} of {short.wanted} replicas{comes}{when}")
    return f"redundancy: {'; '.join(parts)}"


def _sources(summary: Summary, now_ms: float) -> str:
    if summary.pause is not None:
        reason = f" ({summary.pause['reason']})" if summary.pause.get("reason") else ""
        when = since(float(summary.pause["since_ms"]), now_ms)
        return f"sources: paused {when}{reason}; `unbroken resume` lets them be read again"
    if summary.leader is None:
        return "sources: nobody leads the ingress at this moment" if summary.known else ""
    others = [node for node in summary.in_sync if node != summary.leader]
    helped = f", {', '.join(others)} in sync" if others else ", alone"
    if summary.ended:
        return f"sources: they have ended; {summary.leader} leads the ingress{helped}"
    pace = "" if summary.period_ms is None else f" every {span(summary.period_ms)}"
    return f"sources: read{pace} by {summary.leader}{helped}; {counted(summary.in_flight or 0, 'pulse')} in flight"


def _results(summary: Summary) -> str:
    parts = []
    if summary.latency_ms is not None:
        parts.append(f"{span(summary.latency_ms)} after their rows were cut")
    if summary.gap_ms is not None:
        parts.append(f"the newest {span(summary.gap_ms)} ago")
    if summary.lag_ms:
        parts.append(f"input waits for {span(summary.lag_ms)}")
    return f"results: {', '.join(parts)}"


def _controls(state: State) -> bool:
    return bool(state.get("coordination", {}).get("controller"))


def _short(redundancy: Mapping[str, Mapping[str, Any]]) -> tuple[Short, ...]:
    return tuple(
        Short(shard, facts["wanted"], facts["reachable"], facts["joining"], facts["short_since_ms"])
        for shard, facts in sorted(redundancy.items())
        if facts["degraded"]
    )


def _worst(replicas: Sequence[Mapping[str, Any]], what: str) -> float | None:
    """The best replica of each shard, and of those the worst: what somebody downstream sees."""
    best: dict[str, float] = {}
    for replica in replicas:
        if replica.get(what) is not None:
            shard, value = _shard(replica), float(replica[what])
            best[shard] = min(value, best.get(shard, value))
    return max(best.values(), default=None)


def _tentative(replicas: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """The shards with tentative results that are not replaced, and what they lack."""
    found: dict[str, set[str]] = {}
    for replica in replicas:
        if replica.get("tentative_units"):
            found.setdefault(_shard(replica), set()).update(replica.get("lacking", ()))
    return {shard: tuple(sorted(lacking)) for shard, lacking in sorted(found.items())}


def _shard(replica: Mapping[str, Any]) -> str:
    return str(replica["replica"]).partition("#")[0]
