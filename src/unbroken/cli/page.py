"""``unbroken ui``: the live page of a flow."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from unbroken.cli.command import command
from unbroken.cli.shared import ANSWER_DEADLINE_S, AS_JSON, NamedRun, answer, on_run, say
from unbroken.errors import UnbrokenError

if TYPE_CHECKING:
    from unbroken.local.launcher import LocalCluster
    from unbroken.page.actions import NodeFaults
    from unbroken.page.page import Members, Page, PageOptions

PORT = click.IntRange(0, 65_535)


@command(
    examples=[
        ("unbroken ui", "the only local run below ./.unbroken"),
        ("unbroken ui clicks --port 8080 --open", "on a port of your choice, and in your browser"),
        ("unbroken ui clicks --zookeeper zk1:2181 --token-file token", "a flow on other machines"),
        ("unbroken ui clicks --demo", "with buttons that kill and freeze nodes of this host"),
    ]
)
@on_run
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve the page on.")
@click.option("--port", type=PORT, default=0, show_default=True, help="Port of the page; 0 picks a free one.")
@click.option(
    "--name", "names", multiple=True, metavar="NAME", help="A name by which browsers reach this host. May be repeated."
)
@click.option("--demo", is_flag=True, help="Offer to kill and freeze nodes of this host.")
@click.option("--open", "opened", is_flag=True, help="Open the page in the default browser.")
@AS_JSON
def ui(
    run: NamedRun,
    host: str,
    port: int,
    names: tuple[str, ...],
    demo: bool,
    opened: bool,
    as_json: bool,
) -> None:
    """Serve the live page of a running flow, until Ctrl-C.

    It shows the dataflow with every replica on its node, throughput, latency, gaps and lag with failures on the time
    axis, redundancy and since when, and the history. Draining a node or building a replica again needs the flow's
    token. `unbroken run` serves the same page by itself.
    """
    from unbroken.page.page import PageOptions

    options = PageOptions(host, port, names, _faults(demo))
    serve(_page_of(run, options), host, opened, as_json)


def serve(page: Page, host: str, opened: bool, as_json: bool) -> None:
    """Serve a page until Ctrl-C or SIGTERM."""
    if host not in ("127.0.0.1", "::1", "localhost"):
        say("whoever reaches this address sees how the flow is; nothing is encrypted")
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with page:
        answer(as_json, f"the page is at {page.url}", page=page.url)
        if opened:
            click.launch(page.url)
        try:
            while not stopped.wait(1.0):
                pass
        except KeyboardInterrupt:
            pass


def _page_of(run: NamedRun, options: PageOptions) -> Page:
    from unbroken.page.page import page_of_flow

    place = run.place().named()
    token = place.token()
    hint = f"It is in {place.token_file.resolve()}." if place.token_file else "It is in UNBROKEN_TOKEN."
    options = replace(options, token_hint=hint)
    return page_of_flow(place.zookeeper, place.flow, token, options, ANSWER_DEADLINE_S)


def _faults(demo: bool) -> Callable[[Members], NodeFaults] | None:
    """What kills and freezes nodes at the wish of a page; without ``demo`` there is nothing that does."""
    if not demo:
        return None
    from unbroken.testing.injection.by_hand import faults_by_hand

    return faults_by_hand


@contextlib.contextmanager
def page_beside(cluster: LocalCluster, port: int | None, demo: bool) -> Iterator[str | None]:
    """Serve the page of a run as long as it goes on; where it is. Without a port, or if it cannot be served, there is
    none: the run goes on without it."""
    if port is None:
        yield None
        return
    from unbroken.page.page import PageOptions, page_of_run

    options = PageOptions(port=port, faults=_faults(demo), token_hint=f"It is in {cluster.directory / 'token'}.")
    with contextlib.ExitStack() as stack:
        try:
            page = stack.enter_context(page_of_run(cluster, options))
        except UnbrokenError as error:
            say(f"there is no page: {error}")
            yield None
        else:
            yield page.url
