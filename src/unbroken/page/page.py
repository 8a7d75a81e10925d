"""A page put together: what looks at the flow, what may be done to it, and the server, with one start and one stop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from unbroken import __version__
from unbroken.coordination.documents import Member
from unbroken.page.actions import Actions, FlowActions, NodeFaults, TokenCheck
from unbroken.page.app import make_app
from unbroken.page.document import PageFacts
from unbroken.page.feed import PageFeed
from unbroken.page.reader import FlowReader
from unbroken.page.server import PageServer
from unbroken.page.snapshot import FlowSnapshot
from unbroken.protocol.values.ids import NodeId

if TYPE_CHECKING:
    from unbroken.local.launcher import LocalCluster


Members = Callable[[], Mapping[NodeId, Member]]
"""The nodes of a flow at this moment."""


@dataclass(frozen=True)
class PageOptions:
    """Where a page is served and what it may do.

    ``names`` are further ones that browsers reach it by, ``faults`` makes what kills and freezes nodes of this host
    for demonstrations, and ``token_hint`` says where the token is found.
    """

    host: str = "127.0.0.1"
    port: int = 0
    names: tuple[str, ...] = ()
    faults: Callable[[Members], NodeFaults] | None = None
    token_hint: str = ""


class Page:
    """A page that is served as long as it is open; it owns what it was made of, and closes all of it.

    Made by `page_of_flow` or `page_of_run`.
    """

    def __init__(
        self,
        look: Callable[[], FlowSnapshot],
        actions: Actions,
        token: str,
        options: PageOptions,
        *,
        simulated: bool = False,
        closing: Callable[[], None] = lambda: None,
    ) -> None:
        facts = PageFacts(
            actions=tuple(actions.offered), simulated=simulated, token_hint=options.token_hint, version=__version__
        )
        self.feed = PageFeed(look, facts)
        self._server = PageServer(
            make_app(self.feed, actions, TokenCheck(token), options.names), options.host, options.port
        )
        self._closing = closing

    @property
    def url(self) -> str:
        return self._server.url

    def start(self) -> None:
        """Serve; UnbrokenError if the port cannot be had."""
        self._server.start()
        self.feed.start()

    def stop(self) -> None:
        """End it; stopping again does nothing."""
        self.feed.close()
        self._server.stop()
        closing, self._closing = self._closing, lambda: None
        closing()

    def __enter__(self) -> Page:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def page_of_flow(zookeeper: str, flow: str, token: str, options: PageOptions, deadline_s: float = 20.0) -> Page:
    """The page of a flow that runs somewhere."""
    return _page(FlowReader(zookeeper, flow, token, deadline_s=deadline_s), token, options)


def page_of_run(cluster: LocalCluster, options: PageOptions) -> Page:
    """The page of a flow that this process runs: it knows at once when a node's process has ended, and how."""
    reader = FlowReader(cluster.zookeeper.address, cluster.flow.name, cluster.token, ask=cluster.status)
    return _page(reader, cluster.token, options)


def _page(reader: FlowReader, token: str, options: PageOptions) -> Page:
    faults: NodeFaults | None = None
    if options.faults is not None:
        reader.processes = faults = options.faults(lambda: reader.members)

    def close() -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(reader.close)
            if faults is not None:
                stack.callback(faults.close)

    try:
        actions = FlowActions(reader.client, reader.flow, faults)
        return Page(reader.look, actions, token, options, closing=close)
    except BaseException:
        close()
        raise
