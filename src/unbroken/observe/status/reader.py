"""Asking the nodes of a flow how they are, again and again, without a new connection each time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from msgspec.structs import replace

from unbroken.coordination.directory import Directory
from unbroken.coordination.documents import Member
from unbroken.errors import Unreachable
from unbroken.observe.status.codec import UnreadableStatus, decode_node
from unbroken.observe.status.node import NodeState, NodeStatus
from unbroken.protocol.ingress.skip import SkipRequest
from unbroken.protocol.values.ids import NodeId
from unbroken.security.certificates import credentials
from unbroken.transport.auth import open_client
from unbroken.transport.calls import SKIP_ANSWER, JournalQuestion, Question, StatusQuestion, call

STATUS_DEADLINE_S = 2.0
ASKED_AT_ONCE = 16
"""A frozen node takes the whole deadline to be given up; the others must not wait behind it."""


class StatusReader:
    """The status of every node; safe to use from several threads.

    A node that does not answer is listed as ``silent``, one that the layout names and ZooKeeper no longer knows as
    ``lost``, and one whose answer has another version of the schema as ``unreadable``. While ZooKeeper is unavailable
    the nodes that were known last are asked.
    """

    def __init__(self, zookeeper: str, flow: str, token: str, deadline_s: float = 20) -> None:
        self.directory = Directory(zookeeper, flow, deadline_s, token=token)
        self._token = token
        self._lock = threading.Lock()
        self._connections: dict[NodeId, tuple[str, Any]] = {}
        self._pool = ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="status")

    def read(self) -> list[NodeStatus]:
        """Ask every node once."""
        self.directory.refresh()
        members, layout = self.directory.members, self.directory.layout
        out = list(self._pool.map(self._ask, members.values()))
        known = () if layout is None else layout.nodes
        lost = [node for node in known if node not in members]
        ended = "its session with ZooKeeper has ended"
        out += [NodeStatus(node=node, state=NodeState.LOST, reason=ended) for node in lost]
        return sorted(out, key=lambda state: state.node)

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

    def skip(self, node: NodeId, request: SkipRequest) -> str | None:
        """Why a node refuses to hold, release or skip rows; None if that is on its way."""
        return SKIP_ANSWER.decode(self._call(node, request)).refusal

    def journal(self, node: NodeId) -> bytes:
        """The journal of a node."""
        return self._call(node, JournalQuestion())

    def _call(self, node: NodeId, question: Question) -> bytes:
        member = self.directory.members.get(node)
        if member is None:
            raise Unreachable(f"{node} is not there")
        try:
            return call(self._connection(member), question, STATUS_DEADLINE_S)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            self._forget(node)
            raise Unreachable(f"{node} does not answer: {(str(error).splitlines() or [''])[0]}") from error

    def _ask(self, member: Member) -> NodeStatus:
        try:
            found = decode_node(call(self._connection(member), StatusQuestion(), STATUS_DEADLINE_S), member.node)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            self._forget(member.node)
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            found = NodeStatus(node=member.node, state=NodeState.SILENT, reason=reason)
        except UnreadableStatus as error:
            found = NodeStatus(node=member.node, state=NodeState.UNREADABLE, reason=str(error))
        return replace(found, push=member.push or None)

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
