"""A page put together: what looks at the flow, what may be done to it, and the server, with one start and one stop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from unbroken import __version__
from unbroken.page.actions import Actions, Door, FlowActions
from unbroken.page.app import make_app
from unbroken.page.feed import Feed
from unbroken.page.processes import LocalProcesses
from unbroken.page.reader import FlowReader
from unbroken.page.server import PageServer
from unbroken.page.snapshot import Snapshot

if TYPE_CHECKING:
    from unbroken.local.launcher import LocalCluster


@dataclass(frozen=True)
class PageOptions:
    """Where a page is served and what it may do.

    ``names`` are further ones that browsers reach it by, ``demo`` lets it kill and freeze nodes of this host, and
    ``token_hint`` tells whoever wants to do something where the token is found.
    """

    host: str = "127.0.0.1"
    port: int = 0
    names: tuple[str, ...] = ()
    demo: bool = False
    token_hint: str = ""


class Page:
    """A page that is served as long as it is open; it owns what it was made of, and closes all of it.

    Made by `page_of_flow` or `page_of_run`.
    """

    def __init__(
        self,
        look: Callable[[], Snapshot],
        actions: Actions,
        token: str,
        options: PageOptions,
        *,
        simulated: bool = False,
        closing: Callable[[], None] = lambda: None,
    ) -> None:
        facts = {
            "actions": list(actions.offered),
            "simulated": simulated,
            "token_hint": options.token_hint,
            "version": __version__,
        }
        self.feed = Feed(look, lambda: {"page": facts})
        self._server = PageServer(make_app(self.feed, actions, Door(token), options.names), options.host, options.port)
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
    processes: LocalProcesses | None = None
    if options.demo:
        reader.processes = processes = LocalProcesses(lambda: reader.members)

    def close() -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(reader.close)
            if processes is not None:
                stack.callback(processes.close)

    try:
        actions = FlowActions(reader.client, reader.flow, processes)
        return Page(reader.look, actions, token, options, closing=close)
    except BaseException:
        close()
        raise
