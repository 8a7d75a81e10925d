"""Commands that stop and start the reading of sources: ``pause`` and ``resume``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from unbroken.cli.command import command
from unbroken.cli.shared import ANSWER_DEADLINE_S, AS_JSON, NamedRun, RunAddress, answer, on_run

if TYPE_CHECKING:
    from kazoo.client import KazooClient

WAIT = click.option(
    "--wait", "wait_s", default=60.0, show_default=True, help="Seconds to wait for it; 0 does not wait."
)


@command(
    examples=[
        ("unbroken pause", "stop reading; returns when all that was read is delivered"),
        ('unbroken pause --reason "Kafka is moved"', "said by status and history, and to producers"),
        ("unbroken pause --wait 300", "for a flow that has much to finish"),
    ]
)
@on_run
@click.option("--reason", default="", help="Why, in one line.")
@WAIT
@AS_JSON
def pause(run: NamedRun, reason: str, wait_s: float, as_json: bool) -> None:
    """Stop reading the sources of a running flow, until `unbroken resume`.

    The flow stays alive and redundant: lost replicas are built again, and nodes may be restarted or drained. What had
    been read is still processed and delivered; nothing becomes tentative. Rows that are pushed meanwhile are refused,
    with a word when to try again. The pause outlives restarts of every node and of `unbroken run`.
    """
    from unbroken.operations import pause as pausing

    with run.coordinated() as (client, flow):
        found, new = pausing.pause(client, flow, reason)
        if wait_s:
            _wait(run.place(), client, flow, wait_s, paused=True)
    since = time.strftime("%H:%M:%S", time.localtime(found.since_ms / 1000))
    text = f"{flow} is paused; `unbroken resume` lets its sources be read again"
    text = text if new else f"{flow} is paused already, since {since}{f' ({found.reason})' if found.reason else ''}"
    answer(as_json, text, flow=flow, paused=True, changed=new, since_ms=found.since_ms, reason=found.reason)


@command(
    examples=[("unbroken resume", "go on where the pause began"), ("unbroken resume clicks --json", "for programs")]
)
@on_run
@WAIT
@AS_JSON
def resume(run: NamedRun, wait_s: float, as_json: bool) -> None:
    """Read the sources of a paused flow again.

    What has come into them meanwhile is read first, in pulses of ordinary size.
    """
    from unbroken.operations import pause as pausing

    with run.coordinated() as (client, flow):
        found = pausing.resume(client, flow)
        if wait_s and found is not None:
            _wait(run.place(), client, flow, wait_s, paused=False)
    lasted_s = 0.0 if found is None else max(0.0, time.time() - found.since_ms / 1000)
    text = f"{flow} was not paused" if found is None else f"{flow} goes on after a pause of {lasted_s:.1f} s"
    answer(as_json, text, flow=flow, paused=False, changed=found is not None, lasted_s=round(lasted_s, 1))


def _wait(place: RunAddress, client: KazooClient, flow: str, wait_s: float, *, paused: bool) -> None:
    """Wait until the nodes do what was asked for."""
    from unbroken.cli.progress import WaitDisplay
    from unbroken.observe.status.reader import StatusReader
    from unbroken.operations import pause as pausing

    began = time.monotonic()
    with WaitDisplay("the nodes are told to pause" if paused else "the nodes are told to go on") as waiting:
        pausing.wait_known(client, flow, paused, wait_s)
        with StatusReader(place.zookeeper, flow, place.token(), ANSWER_DEADLINE_S) as reader:
            left_s = max(1.0, wait_s - (time.monotonic() - began))
            pausing.wait_until(reader.read, pausing.Settling() if paused else pausing.unread, left_s, waiting.show)
