"""The live page without a flow: ``unbroken simulate page``, and what an update of it costs, ``bench page``."""

from __future__ import annotations

import json
import secrets

import click

from unbroken.cli.command import command
from unbroken.cli.page import PORT, serve
from unbroken.cli.shared import AS_JSON, EXIT_FAILED, say

SETTLE_MS = 20_000.0
"""Simulated time before a simulated flow is shown: it is on its way then."""


@command(
    "page",
    examples=[
        ("unbroken simulate page --open", "try the page without a flow: simulated nodes, and no Spark"),
        ("unbroken simulate page --replicas 500 --faults", "a large flow whose nodes fail now and then"),
    ],
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve the page on.")
@click.option("--port", type=PORT, default=0, show_default=True, help="Port of the page; 0 picks a free one.")
@click.option("--replicas", type=click.IntRange(10, 2_000), help="Size of the flow.")
@click.option("--faults", is_flag=True, help="Let nodes fail now and then.")
@click.option("--open", "opened", is_flag=True, help="Open the page in the default browser.")
@AS_JSON
def simulate_page(host: str, port: int, replicas: int | None, faults: bool, opened: bool, as_json: bool) -> None:
    """Serve the live page of a simulated flow, until Ctrl-C.

    The page is the one of `unbroken ui`. Nodes can be killed, frozen and drained from it; no real process is touched.
    """
    from unbroken.page.page import PageOptions
    from unbroken_lab.page.simulated import page_of_simulation
    from unbroken_lab.page.stages import many, shop, some_faults

    flow = shop() if replicas is None else many(replicas)
    flow.warm_up(SETTLE_MS)
    if faults:
        some_faults(flow, seed=1)
    token = secrets.token_urlsafe(9)
    say(f"the token for its buttons is {token}")
    options = PageOptions(host, port, token_hint="`unbroken simulate page` has printed it.")
    serve(page_of_simulation(flow, options, token), host, opened, as_json)


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
    from unbroken_lab.experiments.page import PageSettings, run_page

    result = run_page(PageSettings(replicas, updates), say)
    click.echo(json.dumps(result) if as_json else json.dumps(result, indent=2))
    if not result["within_limit"]:
        raise SystemExit(EXIT_FAILED)
