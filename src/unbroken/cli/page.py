"""``unbroken ui``: the live page of a flow; and what an update of it costs."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from unbroken.cli.command import command
from unbroken.cli.shared import ANSWER_DEADLINE_S, AS_JSON, EXIT_FAILED, Run, answer, on_run, say
from unbroken.errors import Refused, UnbrokenError

if TYPE_CHECKING:
    from unbroken.cluster.launcher import LocalCluster
    from unbroken.page.page import Page, PageOptions

PORT = click.IntRange(0, 65_535)
SETTLE_MS = 20_000.0
"""Simulated time before a simulated flow is shown: it is on its way then."""


@command(
    examples=[
        ("unbroken ui", "the only local run below ./.unbroken"),
        ("unbroken ui clicks --port 8080 --open", "on a port of your choice, and in your browser"),
        ("unbroken ui clicks --zookeeper zk1:2181 --token-file token", "a flow on other machines"),
        ("unbroken ui clicks --demo", "with buttons that kill and freeze nodes of this host"),
        ("unbroken ui --simulated", "try it without a flow: simulated nodes, and nothing is touched"),
    ]
)
@on_run
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve the page on.")
@click.option("--port", type=PORT, default=0, show_default=True, help="Port of the page; 0 picks a free one.")
@click.option(
    "--name", "names", multiple=True, metavar="NAME", help="A name by which browsers reach this host. May be repeated."
)
@click.option("--demo", is_flag=True, help="Offer to kill and freeze nodes of this host.")
@click.option("--simulated", is_flag=True, help="Show a simulated flow instead.")
@click.option("--replicas", type=click.IntRange(10, 2_000), help="Size of the simulated flow.")
@click.option("--faults", is_flag=True, help="Let simulated nodes fail now and then.")
@click.option("--open", "opened", is_flag=True, help="Open the page in the default browser.")
@AS_JSON
def ui(
    run: Run,
    host: str,
    port: int,
    names: tuple[str, ...],
    demo: bool,
    simulated: bool,
    replicas: int | None,
    faults: bool,
    opened: bool,
    as_json: bool,
) -> None:
    """Serve the live page of a running flow, until Ctrl-C.

    It shows the dataflow with every replica on its node, throughput, latency, gaps and lag with failures on the time
    axis, redundancy and since when, and the history. Draining a node or building a replica again needs the flow's
    token. `unbroken run` serves the same page by itself.
    """
    from unbroken.page.page import PageOptions

    if (replicas is not None or faults) and not simulated:
        raise Refused("--replicas and --faults are for a simulated flow: say --simulated as well, or leave them out")
    options = PageOptions(host, port, names, demo)
    page = _simulated(options, replicas, faults) if simulated else _page_of(run, options)
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


def _page_of(run: Run, options: PageOptions) -> Page:
    from unbroken.page.page import page_of_flow

    place = run.place().named()
    token = place.token()
    hint = f"It is in {place.token_file.resolve()}." if place.token_file else "It is in UNBROKEN_TOKEN."
    options = replace(options, token_hint=hint)
    return page_of_flow(place.zookeeper, place.flow, token, options, ANSWER_DEADLINE_S)


def _simulated(options: PageOptions, replicas: int | None, faults: bool) -> Page:
    import secrets

    from unbroken.page.page import page_of_simulation
    from unbroken.page.stages import many, shop, some_faults

    flow = shop() if replicas is None else many(replicas)
    flow.warm_up(SETTLE_MS)
    if faults:
        some_faults(flow, seed=1)
    token = secrets.token_urlsafe(9)
    say(f"the token for its buttons is {token}")
    return page_of_simulation(flow, replace(options, token_hint="`unbroken ui` has printed it."), token)


@command(
    "page",
    examples=[
        ("unbroken bench page --json", "200 simulated replicas in a headless Chromium"),
        ("unbroken bench page --replicas 1000 --updates 30", "more of them"),
    ],
)
@click.option("--replicas", default=200, show_default=True, help="Replicas of the simulated flow.")
@click.option("--updates", default=40, show_default=True, help="Updates to measure, about one a second.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def bench_page(replicas: int, updates: int, as_json: bool) -> None:
    """What an update of the live page costs, on the server and in a browser, while nodes fail.

    The browser is a headless Chromium: UNBROKEN_CHROMIUM, or `chromium` on the PATH, driven by Playwright, which the
    development tools bring. Without them only the server is measured.
    """
    from unbroken.bench.page import PageSettings, run_page

    result = run_page(PageSettings(replicas, updates), say)
    click.echo(json.dumps(result) if as_json else json.dumps(result, indent=2))
    if not result["within_limit"]:
        raise SystemExit(EXIT_FAILED)


@contextlib.contextmanager
def page_beside(cluster: LocalCluster, port: int | None, demo: bool) -> Iterator[str | None]:
    """Serve the page of a run as long as it goes on; where it is. Without a port, or if it cannot be served, there is
    none: the run goes on without it."""
    if port is None:
        yield None
        return
    from unbroken.page.page import PageOptions, page_of_run

    options = PageOptions(port=port, demo=demo, token_hint=f"It is in {cluster.directory / 'token'}.")
    with contextlib.ExitStack() as stack:
        try:
            page = stack.enter_context(page_of_run(cluster, options))
        except UnbrokenError as error:
            say(f"there is no page: {error}")
            yield None
        else:
            yield page.url
