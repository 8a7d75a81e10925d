"""The live page without a flow: ``unbroken simulate page``."""

from __future__ import annotations

import secrets

import click

from unbroken.cli.command import command
from unbroken.cli.page import PORT, serve
from unbroken.cli.shared import AS_JSON, say

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
