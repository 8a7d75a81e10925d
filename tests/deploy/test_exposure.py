"""What a running flow shows: its ports, and nothing of its secrets, to whoever looks at this machine."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from support import wait_until
from unbroken.cluster.coordination import connect, read_members
from unbroken.cluster.documents import Member
from unbroken.cluster.launcher import LocalCluster
from unbroken.push_client import PushClient

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

FLOW = Path(__file__).parent.parent / "flows" / "exposed.py"
PORTS = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
OUTSIDE = "127.0.0.9"
"""Where the node is reached: an address of the loopback network, but not the one of Spark's own ports."""


class Outside(LocalCluster):
    def ways_of(self, name: str) -> list[str]:
        return ["--host", OUTSIDE]


@dataclass
class Exposed:
    cluster: LocalCluster
    member: Member
    canary: str


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exposed]:
    canary = f"canary-{secrets.token_hex(16)}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXPOSED_KEY", canary)
        with Outside(FLOW, tmp_path_factory.mktemp("exposed") / "state") as cluster:
            cluster.start()
            cluster.wait_ready()
            client = connect(cluster.zookeeper.address, 10, token=cluster.token)
            (member,) = read_members(client, "exposed").values()
            client.stop()
            with cluster.subscribe("live") as results:
                PushClient([member.push], cluster.token, "events").send([{"user": "ann", "amount": 5}])
                wait_until(lambda: results.next(0.2), 60, "a result")
            yield Exposed(cluster, member, canary)


def processes() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def ports_of(addresses: list[str]) -> set[int]:
    return {int(address.rpartition(":")[2]) for address in addresses}


def test_every_port_is_named_in_the_documentation(running: Exposed) -> None:
    """Outside listens what the table of ports names; Spark's own ports are for this machine."""
    (state,) = running.cluster.status()
    named = {
        "of the node": ports_of([running.member.address]),
        "for pushed rows": ports_of([running.member.push]),
        "of metrics and probes": ports_of([state["metrics"]]),
        "of ZooKeeper": ports_of([running.cluster.zookeeper.address]),
    }
    found: dict[str, set[int]] = {}
    for process in processes():
        try:
            connections = process.net_connections("inet")
        except psutil.NoSuchProcess:
            continue
        for connection in connections:
            if connection.status == psutil.CONN_LISTEN:
                place, port = connection.laddr
                java = "java" in process.name()
                spark = "of a local Spark" if java else "of Spark's Python processes"
                kind = next((kind for kind, ports in named.items() if port in ports), spark)
                found.setdefault(kind, set()).add(port)
                if kind in ("of a local Spark", "of Spark's Python processes", "of ZooKeeper"):
                    assert place.removeprefix("::ffff:") in ("127.0.0.1", "::1"), f"{kind} listens on {place}:{port}"
                else:
                    assert place.removeprefix("::ffff:") == OUTSIDE, f"{kind} listens on {place}:{port}"
    assert {kind: found.get(kind) for kind in named} == named, "each of them is found"
    for kind in found:
        assert re.search(rf"^\| {re.escape(kind)} \|", PORTS, re.MULTILINE), f"docs/deployment.md has no row: {kind}"


def test_the_directory_of_a_run_is_private(running: Exposed) -> None:
    assert stat.S_IMODE(running.cluster.directory.stat().st_mode) == 0o700


def test_a_secret_is_nowhere_but_in_the_environment_of_the_nodes(running: Exposed) -> None:
    canary, cluster = running.canary, running.cluster
    for process in processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            assert canary not in " ".join(process.cmdline()), "in the list of processes"
    assert canary not in json.dumps(cluster.status())
    for path in cluster.directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # the flow runs on
            assert canary.encode() not in path.read_bytes(), path
    client = connect(cluster.zookeeper.address, 10, token=cluster.token)
    pending, seen = ["/unbroken"], 0
    while pending:
        place = pending.pop()
        data, _ = client.get(place)
        assert canary.encode() not in (data or b""), place
        seen += 1
        pending += [f"{place}/{child}" for child in client.get_children(place)]
    client.stop()
    assert seen > 5
    for command in (["status", "--json"], ["history"], ["topology"]):
        told = subprocess.run(
            [sys.executable, "-m", "unbroken", *command, "--dir", str(cluster.directory)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert told.returncode == 0, told.stderr
        assert canary not in told.stdout + told.stderr
