"""Who is part of a flow, for programs that are not part of it themselves: status and subscribers."""

from __future__ import annotations

import contextlib
import threading
import time

from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from unbroken.coordination.client import check_access
from unbroken.coordination.documents import FLOW, LAYOUT, Member, SinkInfo, connect, root_of
from unbroken.errors import UnbrokenError
from unbroken.protocol.values.ids import NodeId
from unbroken.protocol.values.layout import Layout
from unbroken.security.sealing import ForgedDocument

SESSION_S = 10.0
SINKS_DEADLINE_S = 10.0
READ_DEADLINE_S = 1.0
"""How long a refresh may take; what is known already is shown if ZooKeeper takes longer."""


class Directory:
    """The members and the layout of a flow as ZooKeeper said last, over one session kept for its whole life.

    While ZooKeeper is away ``refresh`` changes nothing, says so, and does not wait for it. Safe to use from
    several threads.
    """

    def __init__(self, zookeeper: str, flow: str, deadline_s: float = 20, *, token: str) -> None:
        self._client = connect(zookeeper, SESSION_S, deadline_s, token=token)
        try:
            check_access(self._client, flow)
        except UnbrokenError:
            self.close()
            raise
        self._root = root_of(flow)
        self._lock = threading.Lock()
        self._members: dict[NodeId, Member] = {}
        self._layout: Layout | None = None
        self.away = False
        """Whether ZooKeeper did not answer the last refresh."""

    @property
    def members(self) -> dict[NodeId, Member]:
        with self._lock:
            return dict(self._members)

    @property
    def layout(self) -> Layout | None:
        return self._layout

    def refresh(self) -> bool:
        """Read members and layout again; False if ZooKeeper is away."""
        if not self._client.connected:
            # A request made in this state would be queued until ZooKeeper is back.
            self.away = True
            return False
        try:
            layout, members = self._read(time.monotonic() + READ_DEADLINE_S)
        except (KazooException, KazooTimeoutError):
            self.away = True
            return False
        with self._lock:
            self._members = members
            self._layout = layout or self._layout
        self.away = False
        return True

    def sinks(self) -> dict[str, SinkInfo]:
        """The sinks of a flow that has a layout; raises UnbrokenError if ZooKeeper does not answer."""
        try:
            data = self._client.get_async(f"{self._root}/topology").get(timeout=SINKS_DEADLINE_S)[0]
            return dict(FLOW.decode(data).sinks)
        except (KazooException, KazooTimeoutError) as error:
            what = f"ZooKeeper does not tell the sinks of the flow in {self._root} ({type(error).__name__})"
            raise UnbrokenError(f"{what}; see that the flow runs, and try again") from error

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    def _read(self, deadline: float) -> tuple[Layout | None, dict[NodeId, Member]]:
        def left() -> float:
            return max(0.0, deadline - time.monotonic())

        asked = self._client.get_async(f"{self._root}/layout")
        listed = self._client.get_children_async(f"{self._root}/members")
        layout: Layout | None = None
        with contextlib.suppress(NoNodeError, ForgedDocument):
            layout = LAYOUT.decode(asked.get(timeout=left())[0])
        try:
            names = sorted(listed.get(timeout=left()))
        except NoNodeError:
            return layout, {}
        answers = {name: self._client.get_async(f"{self._root}/members/{name}") for name in names}
        members: dict[NodeId, Member] = {}
        for name, answer in answers.items():
            with contextlib.suppress(NoNodeError, ForgedDocument):
                members[name] = Member.from_bytes(answer.get(timeout=left())[0])
        return layout, members
