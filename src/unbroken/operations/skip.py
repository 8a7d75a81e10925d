"""`unbroken skip`: set the rows of a source in one pulse aside, which stay unreadable.

The nodes are asked, a hold and a skip are put into the ingress log by its leader, and what comes of them is watched
here. Whether the rows may be skipped is decided in `unbroken.protocol.ingress.skip`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from unbroken.errors import DeadlinePassed, Refused, UnbrokenError
from unbroken.observe.status.node import NodeState, NodeStatus
from unbroken.protocol.ingress.skip import (
    MemberView,
    ReaderView,
    SkipRequest,
    SkipRequestKind,
    objection,
    stuck_everywhere,
)
from unbroken.protocol.values.ids import StreamId
from unbroken.protocol.values.layout import INGRESS

LOOK_S = 0.2

UNHEARD = (NodeState.SILENT, NodeState.LOST, NodeState.UNREADABLE)
"""Nodes in these states may host the ingress and have read rows."""

States = Sequence[NodeStatus]


class Nodes(Protocol):
    """How the nodes of a flow are asked."""

    def read(self) -> list[NodeStatus]: ...

    def skip(self, node: str, request: SkipRequest) -> str | None:
        """Why a node refuses the request; None if that is on its way."""


@dataclass(frozen=True)
class StuckRows:
    """Rows of a source that a node cannot read."""

    source: str
    pulse: int
    node: str
    seconds: float
    trouble: str


def stuck_rows(states: States) -> list[StuckRows]:
    """All rows that nodes of the ingress have yet to read, those of the same source and pulse together."""
    found = [
        StuckRows(source, stuck.pulse, state.node, stuck.seconds, stuck.trouble)
        for state in states
        if state.ingress is not None
        for source, stuck in state.ingress.stuck.items()
    ]
    return sorted(found, key=lambda stuck: (stuck.source, stuck.pulse, stuck.node))


def skip(
    nodes: Nodes, source: str, pulse: int, deadline_s: float, show: Callable[[str], None] = lambda _: None
) -> None:
    """Set the rows aside.

    Raises
    ------
    Refused
        If a node has read the rows, or may have; nothing is changed then.
    DeadlinePassed
        If the nodes did not do it in time.
    """
    deadline = time.monotonic() + deadline_s
    states = nodes.read()
    sources = {name for state in states if state.flow is not None for name in state.flow.sources}
    if source not in sources:
        raise Refused(f"there is no source {source!r}; the flow has {', '.join(sorted(sources)) or 'none'}")
    _refuse(stuck_everywhere(_members(states, source), _placed(states), pulse))
    show("the nodes hold the rows")
    _ask(nodes, deadline, "hold", source, pulse)
    hold = _wait(nodes, deadline, lambda states: _hold(states, source, pulse), "the nodes did not hold the rows")
    states = nodes.read()
    found = objection(_members(states, source), _placed(states), pulse, _readers(states, source))
    if found is not None:
        _ask(nodes, deadline, "release", source, pulse, hold)
        _refuse(found)
    show("the rows are skipped")
    _ask(nodes, deadline, "skip", source, pulse, hold)
    _wait(nodes, deadline, lambda states: _passed(states, source, pulse), "the rows were not skipped")


def _refuse(why: str | None) -> None:
    if why is not None:
        raise Refused(f"the rows cannot be skipped: {why}")


def _placed(states: States) -> set[str]:
    """The nodes that host the ingress, also those that do not answer."""
    found = {state.node: state.ingress for state in states if state.ingress is not None}
    members = {node for ingress in found.values() if ingress.leading for node in ingress.members}
    return members | set(found) | {state.node for state in states if state.state in UNHEARD}


def _members(states: States, source: str) -> list[MemberView]:
    out = []
    for state in states:
        if state.ingress is not None:
            stuck = state.ingress.stuck.get(source)
            at = (None, 0) if stuck is None else (stuck.pulse, stuck.held)
            out.append(MemberView(state.node, *at))
    return out


def _readers(states: States, source: str) -> list[ReaderView]:
    """What consumers have of the streams of a source, against what the members of the ingress have made of them."""
    made: dict[str, int] = {}
    for state in states:
        for stream, box in state.outboxes.items() if state.ingress is not None else ():
            made[stream] = max(made.get(stream, 0), box.last)
    return [
        ReaderView(replica.replica, has, made.get(stream, 0))
        for state in states
        for replica in state.replicas
        for stream, has in replica.inputs.items()
        if StreamId.parse(stream).producer.part == source
    ]


def _hold(states: States, source: str, pulse: int) -> int | None:
    """The hold that all nodes have; None while they do not."""
    members = _members(states, source)
    holds = {member.hold for member in members if member.pulse == pulse}
    agreed = len(holds) == 1 and all(member.pulse == pulse for member in members)
    return (holds.pop() or None) if agreed else None


def _passed(states: States, source: str, pulse: int) -> bool | None:
    members = _members(states, source)
    return True if members and all(m.pulse is None or m.pulse > pulse for m in members) else None


def _ask(nodes: Nodes, deadline: float, kind: SkipRequestKind, source: str, pulse: int, hold: int = 0) -> None:
    """Ask whoever leads the ingress, which may change while this goes on."""
    why = f"no node leads {INGRESS.part} at this moment"
    while time.monotonic() < deadline:
        leader = next((state.node for state in nodes.read() if state.leading), None)
        if leader is not None:
            try:
                answer = nodes.skip(leader, SkipRequest(kind, source, pulse, hold))
            except UnbrokenError as error:
                answer = str(error)
            if answer is None:
                return
            why = answer
        time.sleep(LOOK_S)
    raise DeadlinePassed(f"the ingress did not take the wish to {kind} the rows: {why}; try again")


def _wait(nodes: Nodes, deadline: float, found: Callable[[States], Any], what: str) -> Any:
    while (value := found(nodes.read())) is None:
        if time.monotonic() > deadline:
            raise DeadlinePassed(f"{what} in time; a hold ends by itself after a while, see `unbroken skip`")
        time.sleep(LOOK_S)
    return value
