"""Asking the nodes of a flow how they are, again and again, without a new connection each time."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from unbroken.coordination.directory import Directory
from unbroken.coordination.documents import Member
from unbroken.errors import Unreachable
from unbroken.protocol.values.ids import NodeId
from unbroken.security.certificates import credentials
from unbroken.transport.auth import open_client

STATUS_DEADLINE_S = 2.0
ASKED_AT_ONCE = 16
"""A frozen node takes the whole deadline to be given up; the others must not wait behind it."""


class StatusReader:
    """The status of every node, as a list of JSON objects; safe to use from several threads.

    A node that does not answer is listed as ``silent``, one that the layout names and ZooKeeper does not know
    any more as ``lost``. While ZooKeeper is away the nodes that were there last are asked.
    """

    def __init__(self, zookeeper: str, flow: str, token: str, deadline_s: float = 20) -> None:
        self.directory = Directory(zookeeper, flow, deadline_s, token=token)
        self._token = token
        self._lock = threading.Lock()
        self._connections: dict[NodeId, tuple[str, Any]] = {}
        self._pool = ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="status")

    def read(self) -> list[dict[str, Any]]:
        """Ask everybody once."""
        self.directory.refresh()
        members, layout = self.directory.members, self.directory.layout
        out = list(self._pool.map(self._ask, members.values()))
        known = () if layout is None else layout.nodes
        lost = [node for node in known if node not in members]
        out += [{"node": node, "state": "lost", "reason": "its session with ZooKeeper has ended"} for node in lost]
        return sorted(out, key=lambda state: str(state["node"]))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for _, connection in self._connections.values():
                connection.close()
            self._connections.clear()
        self.directory.close()

    def __enter__(self) -> StatusReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(self, node: NodeId, action: str, question: dict[str, Any]) -> Any:
        """Ask one node for something else; its answer."""
        member = self.directory.members.get(node)
        if member is None:
            raise Unreachable(f"{node} is not there")
        try:
            options = flight.FlightCallOptions(timeout=STATUS_DEADLINE_S)
            asked = flight.Action(action, json.dumps(question).encode())
            answer = next(iter(self._connection(member).do_action(asked, options)))
            return json.loads(answer.body.to_pybytes())
        except (flight.FlightError, pa.ArrowException, OSError, StopIteration) as error:
            self._forget(node)
            raise Unreachable(f"{node} does not answer: {(str(error).splitlines() or [''])[0]}") from error

    def _ask(self, member: Member) -> dict[str, Any]:
        extra = {"push": member.push} if member.push else {}
        try:
            action = flight.Action("status", b"{}")
            options = flight.FlightCallOptions(timeout=STATUS_DEADLINE_S)
            answer = next(iter(self._connection(member).do_action(action, options)))
            state: dict[str, Any] = json.loads(answer.body.to_pybytes())
        except (flight.FlightError, pa.ArrowException, OSError, StopIteration) as error:
            self._forget(member.node)
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            return {"node": member.node, "state": "silent", "reason": reason, **extra}
        return {**state, **extra}

    def _connection(self, member: Member) -> Any:
        with self._lock:
            address, connection = self._connections.get(member.node, ("", None))
            if address != member.address:
                if connection is not None:
                    connection.close()
                connection = open_client(member.address, credentials(self._token))
                self._connections[member.node] = (member.address, connection)
            return connection

    def _forget(self, node: NodeId) -> None:
        """Drop a connection that failed: kept, it would wait ever longer before it tries again."""
        with self._lock:
            _, connection = self._connections.pop(node, ("", None))
        if connection is not None:
            connection.close()
