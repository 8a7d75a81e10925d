"""`unbroken pause` and `unbroken resume`: let the sources of a running flow rest, and see that they do.

The wish is a document; the controller makes it part of the layout, by which all nodes go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from unbroken.coordination.documents import pause_bytes, read_pause, root_of
from unbroken.errors import DeadlinePassed, Refused
from unbroken.operations.requests import LOOK_S, current_layout
from unbroken.protocol.ingress.pause import Pause
from unbroken.wording import counted

LONGEST_REASON = 200
"""Characters of a reason: it is part of the layout, and of every answer to a producer."""

States = Sequence[Mapping[str, Any]]


def pause(client: KazooClient, flow: str, reason: str = "") -> tuple[Pause, bool]:
    """Ask for the sources not to be read; the pause, and whether it is a new one."""
    current_layout(client, flow)
    if len(reason) > LONGEST_REASON or not reason.isprintable():
        raise Refused(f"a reason is one line of at most {LONGEST_REASON} characters")
    wished = Pause(int(time.time() * 1000), reason)
    try:
        client.create(f"{root_of(flow)}/paused", pause_bytes(wished))
    except NodeExistsError:
        return read_pause(client, flow) or wished, False
    return wished, True


def resume(client: KazooClient, flow: str) -> Pause | None:
    """Ask for the sources to be read again; what is over, None if the flow was not paused."""
    current_layout(client, flow)
    found = read_pause(client, flow)
    try:
        client.delete(f"{root_of(flow)}/paused")
    except NoNodeError:
        return None
    return found


class Settling:
    """Tells what there is to wait for until a pause is complete: nothing is read, and all that was is delivered.

    Any member of the ingress may be the next to lead it, so they all have to know. Pulses without rows go on meanwhile;
    those that were cut before all members knew are waited for, and what has come of them.
    """

    def __init__(self) -> None:
        self._pulse: int | None = None
        self._last: dict[str, int] | None = None

    def __call__(self, states: States) -> str | None:
        """What is lacking; None if nothing is."""
        leader = _leader(states)
        if leader is None:
            return "nobody leads the ingress at this moment"
        ingress = leader["ingress"]
        resting = {str(state["node"]) for state in states if state.get("ingress", {}).get("reading") is False}
        unaware = sorted(set(ingress["members"]) - resting)
        if unaware:
            return f"{', '.join(unaware)} may still read the sources"
        self._pulse = int(ingress["pulse"]) if self._pulse is None else self._pulse
        left = self._pulse - (int(ingress["pulse"]) - int(ingress["in_flight"]))
        if left > 0:
            return f"{counted(left, 'pulse')} on the way"
        if self._last is None:
            self._last = {stream: _most(states, "outboxes", stream, "last") for stream in _sinks(states)}
        late = [stream for stream, last in self._last.items() if _most(states, "sinks", stream, "delivered") < last]
        return f"results are on their way to {', '.join(sorted(late))}" if late else None


def unread(states: States) -> str | None:
    """What there is to wait for after a pause; None if the sources are read."""
    leader = _leader(states)
    if leader is None:
        return "nobody leads the ingress at this moment"
    return None if leader["ingress"].get("reading") else f"{leader['node']} does not read the sources yet"


def wait_until(
    look: Callable[[], States],
    lacking: Callable[[States], str | None],
    deadline_s: float,
    show: Callable[[str], None],
) -> None:
    """Ask the nodes until nothing is lacking any more."""
    deadline = time.monotonic() + deadline_s
    while (what := lacking(look())) is not None:
        show(what)
        if time.monotonic() > deadline:
            raise DeadlinePassed(f"waited {deadline_s:.0f} s and {what}; it stays asked for, see `unbroken status`")
        time.sleep(LOOK_S)


def wait_known(client: KazooClient, flow: str, paused: bool, deadline_s: float) -> None:
    """Wait until the layout says so, by which all nodes go; for those who cannot ask the nodes."""
    deadline = time.monotonic() + deadline_s
    while (current_layout(client, flow).pause is not None) != paused:
        if time.monotonic() > deadline:
            raise DeadlinePassed(
                f"waited {deadline_s:.0f} s for a controller to take notice; it stays asked for. See that nodes of "
                f"{flow} are there: `unbroken status`"
            )
        time.sleep(LOOK_S)


def _leader(states: States) -> Mapping[str, Any] | None:
    return next((state for state in states if state.get("ingress", {}).get("leading")), None)


def _sinks(states: States) -> set[str]:
    """The streams that nodes deliver to sinks."""
    return {str(stream) for state in states for stream in state.get("sinks", {})}


def _most(states: States, part: str, stream: str, what: str) -> int:
    """The highest number that any node says of a stream."""
    return max((int(s[part][stream][what]) for s in states if stream in s.get(part, {})), default=0)
