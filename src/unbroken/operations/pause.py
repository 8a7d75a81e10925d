"""`unbroken pause` and `unbroken resume`: let the sources of a running flow rest, and see that they do.

The wish is a document; the controller makes it part of the layout, by which all nodes go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from unbroken.coordination.documents import PAUSE, read_pause, root_of
from unbroken.errors import DeadlinePassed, Refused
from unbroken.observe.status.node import IngressStatus, NodeStatus
from unbroken.operations.requests import LOOK_S, current_layout
from unbroken.protocol.values.pause import Pause
from unbroken.wording import counted

LONGEST_REASON = 200
"""Characters of a reason: it is part of the layout, and of every answer to a producer."""

States = Sequence[NodeStatus]


def pause(client: KazooClient, flow: str, reason: str = "") -> tuple[Pause, bool]:
    """Ask for the sources not to be read; the pause, and whether it is a new one."""
    current_layout(client, flow)
    if len(reason) > LONGEST_REASON or not reason.isprintable():
        raise Refused(f"a reason is one line of at most {LONGEST_REASON} characters")
    wished = Pause(int(time.time() * 1000), reason)
    try:
        client.create(f"{root_of(flow)}/paused", PAUSE.encode(wished))
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
        ingress = _led(states)
        if ingress is None:
            return "nobody leads the ingress at this moment"
        resting = {state.node for state in states if state.ingress is not None and not state.ingress.reading}
        unaware = sorted(set(ingress.members) - resting)
        if unaware:
            return f"{', '.join(unaware)} may still read the sources"
        self._pulse = ingress.pulse if self._pulse is None else self._pulse
        left = self._pulse - (ingress.pulse - ingress.in_flight)
        if left > 0:
            return f"{counted(left, 'pulse')} on the way"
        if self._last is None:
            self._last = {stream: _produced(states, stream) for stream in _sinks(states)}
        late = [stream for stream, last in self._last.items() if _delivered(states, stream) < last]
        return f"results are on their way to {', '.join(sorted(late))}" if late else None


def unread(states: States) -> str | None:
    """What there is to wait for after a pause; None if the sources are read."""
    leader = next((state for state in states if state.leading), None)
    if leader is None or leader.ingress is None:
        return "nobody leads the ingress at this moment"
    return None if leader.ingress.reading else f"{leader.node} does not read the sources yet"


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


def _led(states: States) -> IngressStatus | None:
    """The ingress as its leader reports it."""
    return next((state.ingress for state in states if state.leading), None)


def _sinks(states: States) -> set[str]:
    """The streams that nodes deliver to sinks."""
    return {stream for state in states for stream in state.sinks}


def _produced(states: States, stream: str) -> int:
    """The last unit of a stream that any node has."""
    return max((state.outboxes[stream].last for state in states if stream in state.outboxes), default=0)


def _delivered(states: States, stream: str) -> int:
    """The last unit of a stream that its sink has, as far as any node knows."""
    return max((state.sinks[stream].delivered for state in states if stream in state.sinks), default=0)
