"""The command that runs a ZooKeeper server: ``zookeeper``."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from unbroken.cli.command import command
from unbroken.cli.shared import AS_JSON, answer
from unbroken.errors import UnbrokenError

LOOK_S = 0.5
"""How often the server is looked at."""


@command(examples=[("unbroken zookeeper --dir zk", "one server on this machine, at port 2181")])
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path("zookeeper"),
    show_default=True,
    help="Where it keeps its data and its log.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=2181, show_default=True, help="0 picks a free one.")
@AS_JSON
def zookeeper(directory: Path, host: str, port: int, as_json: bool) -> None:
    """Run one ZooKeeper server until Ctrl-C, for nodes that are started by hand.

    It is the one that `unbroken run` brings along. Started again on its directory it has everything that it had. For
    more than trying things out use an ensemble of three or five servers of ZooKeeper's own distribution.
    """
    from unbroken.local.zookeeper_server import EmbeddedZooKeeper

    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with EmbeddedZooKeeper(directory, directory / "zookeeper.log", host, port or None) as server:
        text = f"ZooKeeper takes requests at {server.address}; Ctrl-C ends it"
        answer(as_json, text, address=server.address, directory=str(directory))
        while not ended.wait(LOOK_S):
            if not server.alive():
                raise UnbrokenError(f"the ZooKeeper server has ended; its log is {server.log_file}")
