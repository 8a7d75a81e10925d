"""Looks at a real flow: asks its nodes, and reads what ZooKeeper says about them.

What is read again and again is read with a deadline, and of the history only what is not known yet. While ZooKeeper is
away the last that it said is shown, with the nodes that answer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from unbroken.coordination.directory import Directory
from unbroken.coordination.documents import Member, Suspicion, connect, reported_from, root_of
from unbroken.observe.status.node import NodeStatus
from unbroken.observe.status.reader import StatusReader
from unbroken.page.snapshot import FlowSnapshot
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.notices import Reported
from unbroken.security.sealing import ForgedDocument

SESSION_S = 10.0
READ_DEADLINE_S = 1.0
"""What ZooKeeper has not said by then is shown as it was."""


class Processes(Protocol):
    """The processes of nodes, as far as they can be reached from here."""

    def local(self) -> Collection[NodeId]: ...

    def frozen(self) -> Collection[NodeId]: ...


class NoProcesses:
    """Nodes are left alone."""

    def local(self) -> Collection[NodeId]:
        return ()

    def frozen(self) -> Collection[NodeId]:
        return ()


class FlowReader:
    """Gives a snapshot of a flow when asked; to be used by one thread at a time.

    Parameters
    ----------
    ask
        Asks all nodes how they are. By default they are asked over the network alone; who has started their processes
        knows more of them.
    """

    def __init__(
        self,
        zookeeper: str,
        flow: str,
        token: str,
        *,
        ask: Callable[[], list[NodeStatus]] | None = None,
        deadline_s: float = 20.0,
    ) -> None:
        self.flow = flow
        self.processes: Processes = NoProcesses()
        self.client: KazooClient = connect(zookeeper, SESSION_S, deadline_s, token=token)
        self._documents = Documents(self.client, flow)
        self._reader: StatusReader | None = None
        try:
            if ask is None:
                self._reader = StatusReader(zookeeper, flow, token, deadline_s)
            self._directory = (
                Directory(zookeeper, flow, deadline_s, token=token) if self._reader is None else self._reader.directory
            )
        except BaseException:
            self._end_session()
            raise
        self._ask = ask

    @property
    def members(self) -> Mapping[NodeId, Member]:
        """The members of the flow as ZooKeeper said last."""
        return self._directory.members

    def look(self) -> FlowSnapshot:
        if self._ask is not None:
            self._directory.refresh()
        states = self._ask() if self._ask is not None else self._reader_states()
        self._documents.read()
        return FlowSnapshot(
            time_ms=int(time.time() * 1000),
            flow=self.flow,
            states=tuple(states),
            layout=self._directory.layout,
            suspicions=self._documents.suspicions,
            history=self._documents.history,
            zookeeper_away=self._directory.away,
            local=frozenset(self.processes.local()),
            frozen=frozenset(self.processes.frozen()),
        )

    def _reader_states(self) -> list[NodeStatus]:
        assert self._reader is not None
        return self._reader.read()

    def close(self) -> None:
        (self._reader or self._directory).close()
        self._end_session()

    def __enter__(self) -> FlowReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end_session(self) -> None:
        self.client.stop()
        self.client.close()


class Documents:
    """Suspicions and history of a flow, as ZooKeeper said last."""

    def __init__(self, client: KazooClient, flow: str) -> None:
        self._client = client
        self._root = root_of(flow)
        self._entries: dict[str, Reported | None] = {}
        self.suspicions: tuple[Suspicion, ...] = ()
        self.history: tuple[Reported, ...] = ()

    def read(self) -> bool:
        """Read what has changed; False if ZooKeeper does not answer in time."""
        if not self._client.connected:
            # A request made in this state would be queued until ZooKeeper is back.
            return False
        deadline = time.monotonic() + READ_DEADLINE_S
        try:
            found = self._children("suspected", deadline)
            self.suspicions = tuple(Suspicion.from_bytes(data) for data in found.values())
            self._read_history(deadline)
        except (KazooException, KazooTimeoutError):
            return False
        return True

    def _read_history(self, deadline: float) -> None:
        """Entries never change, so that only those are read that have been added."""
        names = self._names("history", deadline)
        known = {name: self._entries[name] for name in names if name in self._entries}
        found = self._get("history", [name for name in names if name not in known], deadline)
        for name, data in found.items():
            known[name] = reported_from(name, data)
        if found or len(known) != len(self._entries):
            self._entries = known
            entries = (known[name] for name in sorted(known))
            self.history = tuple(entry for entry in entries if entry is not None)

    def _children(self, part: str, deadline: float) -> dict[str, bytes]:
        return self._get(part, self._names(part, deadline), deadline)

    def _names(self, part: str, deadline: float) -> list[str]:
        try:
            return sorted(self._client.get_children_async(f"{self._root}/{part}").get(timeout=_left(deadline)))
        except NoNodeError:
            return []

    def _get(self, part: str, names: list[str], deadline: float) -> dict[str, bytes]:
        """What is below a part, all of it asked for at once; without entries that vanish meanwhile or are forged."""
        asked = {name: self._client.get_async(f"{self._root}/{part}/{name}") for name in names}
        out: dict[str, bytes] = {}
        for name, answer in asked.items():
            with contextlib.suppress(NoNodeError, ForgedDocument):
                out[name] = answer.get(timeout=_left(deadline))[0]
        return out


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
