"""What a running flow shows: its ports, and nothing of its secrets, to whoever looks at this machine."""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import psutil
import pytest

from kit.places import FLOWS, ROOT
from kit.support import wait_until
from unbroken.client import PushClient
from unbroken.coordination.documents import Member, connect, read_members
from unbroken.local.launcher import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

FLOW = FLOWS / "exposed.py"
PORTS = (ROOT / "docs" / "deployment.md").read_text()
OUTSIDE = "127.0.0.9"
"""Where the node is reached: an address of the loopback network, but not the one of Spark's own ports."""

LOOPBACK = "127.0.0.1"
LOCAL_SPARK = "of a local Spark"
MOMENT_S = 1.0


class Outside(LocalCluster):
    def ways_of(self, name: str) -> list[str]:
        return ["--host", OUTSIDE]


@dataclass
class Exposed:
    cluster: LocalCluster
    member: Member
    canary: str
    driver: int
    blocks: int


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exposed]:
    canary = f"canary-{secrets.token_hex(16)}"
    EARLIER.update(psutil.Process().children())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXPOSED_KEY", canary)
        driver, blocks = free_ports(2)
        patch.setenv("EXPOSED_DRIVER_PORT", str(driver))
        patch.setenv("EXPOSED_BLOCKS_PORT", str(blocks))
        with Outside(FLOW, tmp_path_factory.mktemp("exposed") / "state") as cluster:
            cluster.start()
            cluster.wait_ready(300)
            client = connect(cluster.zookeeper.address, 10, token=cluster.token)
            (member,) = read_members(client, "exposed").values()
            client.stop()
            with cluster.subscribe("live") as results:
                PushClient([member.push], cluster.token, "events").send([{"user": "ann", "amount": 5}])
                wait_until(lambda: results.next(0.2), 60, "a result")
            yield Exposed(cluster, member, canary, driver, blocks)


EARLIER: set[psutil.Process] = set()
"""Children that this process had before the flow was started, such as the Spark of other tests."""


def processes() -> list[psutil.Process]:
    """The processes of the flow, and those that a test has started beside it."""
    ours = [child for child in psutil.Process().children() if child not in EARLIER]
    return [process for child in ours for process in (child, *_below(child))]


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@dataclass(frozen=True)
class Socket:
    """A TCP socket that listens, or a UDP socket that is bound."""

    process: str
    transport: str
    place: str
    port: int


@dataclass(frozen=True)
class Port:
    """A port that may be open: its row in the table of ports, what of the row it is, and where it is open."""

    row: str
    what: str
    place: str


def kind_of(process: psutil.Process) -> str:
    """Whose process it is, by its command."""
    command = process.cmdline()
    for kind, sign in (
        ("guardian", "guardian.py"),
        ("zookeeper", "org.apache.zookeeper.server.quorum.QuorumPeerMain"),
        ("spark", "org.apache.spark.deploy.SparkSubmit"),
        ("reader of a source", "pyspark.sql.streaming.python_streaming_source_runner"),
        ("python of spark", "pyspark.daemon"),
        ("node", "unbroken"),
    ):
        if any(part == sign or part.endswith(f"/{sign}") for part in command):
            return kind
    return " ".join(command)[:200] or process.name()


@dataclass
class Machine:
    """The sockets of this process's children: which are open, and which kinds of processes are connected to a port."""

    open: list[Socket]
    users: dict[int, set[str]]

    @classmethod
    def look(cls) -> Machine:
        """The sockets that last. For each batch Spark opens one for a moment, by which the node takes its rows."""
        first = cls._look()
        later = time.monotonic() + MOMENT_S
        wait_until(lambda: time.monotonic() > later, 10 * MOMENT_S, "a while")
        second = cls._look()
        users = {
            port: first.users.get(port, set()) | second.users.get(port, set()) for port in first.users | second.users
        }
        return cls([one for one in second.open if one in first.open], users)

    @classmethod
    def _look(cls) -> Machine:
        found, users = [], dict[int, set[str]]()
        for process in processes():
            try:
                kind, connections = kind_of(process), process.net_connections("inet")
            except psutil.NoSuchProcess:
                continue
            for each in connections:
                datagrams = each.type == socket.SOCK_DGRAM
                if each.laddr and (datagrams or each.status == psutil.CONN_LISTEN):
                    place = each.laddr.ip.removeprefix("::ffff:")
                    found.append(Socket(kind, "udp" if datagrams else "tcp", place, each.laddr.port))
                elif each.raddr:
                    users.setdefault(each.raddr.port, set()).add(kind)
        return cls(found, users)


def known_as(one: Socket, machine: Machine, running: Exposed) -> Port | None:
    """The port that a socket is, by its owner, its number and the processes that are connected to it."""
    (state,) = running.cluster.status()
    fixed = {
        ("node", port_of(running.member.address)): Port("of the node", "", OUTSIDE),
        ("node", port_of(running.member.push)): Port("for pushed rows", "", OUTSIDE),
        ("node", port_of(state.metrics or "")): Port("of metrics and probes", "", OUTSIDE),
        ("zookeeper", port_of(running.cluster.zookeeper.address)): Port("of ZooKeeper", "", LOOPBACK),
        ("spark", running.driver): Port(LOCAL_SPARK, "the driver", LOOPBACK),
        ("spark", running.blocks): Port(LOCAL_SPARK, "its blocks", LOOPBACK),
    }
    known = fixed.get((one.process, one.port))
    if known is not None or one.transport == "udp":
        return known if one.transport == "tcp" else None
    users = machine.users.get(one.port, set())
    by_use = {
        ("spark", "node"): Port(LOCAL_SPARK, "the gateway of PySpark", LOOPBACK),
        ("spark", "reader of a source"): Port(LOCAL_SPARK, "readers of inputs", LOOPBACK),
        ("node", "spark"): Port("of Spark's Python processes", "calls and counters of the node", LOOPBACK),
        ("python of spark", "spark"): Port("of Spark's Python processes", "workers", LOOPBACK),
    }
    found = {by_use[one.process, user] for user in users if (one.process, user) in by_use}
    if not found and one.process == "python of spark":
        return Port("of Spark's Python processes", "workers", LOOPBACK)  # none is at work
    return found.pop() if len(found) == 1 else None


MOST = {"calls and counters of the node": 2, "workers": 8}
"""How many ports of a kind there may be: one, if it is not listed. Spark has one for each kind of worker."""


def undocumented(machine: Machine, running: Exposed) -> list[str]:
    """Every open port that the documentation does not name, or that is open elsewhere than it says."""
    out, counts = [], Counter[Port]()
    for one in machine.open:
        port = known_as(one, machine, running)
        if port is None:
            out.append(f"{one.transport} {one.place}:{one.port} of {one.process} is unknown")
            continue
        counts[port] += 1
        row = re.search(rf"^\| {re.escape(port.row)} \|.*$", PORTS, re.MULTILINE)
        if row is None or port.what not in row[0]:
            out.append(f"docs/deployment.md has no row {port.row!r} with {port.what!r}")
        if one.place != port.place:
            out.append(f"{port.row} {port.what} listens on {one.place}:{one.port}")
        if counts[port] > MOST.get(port.what, 1):
            out.append(f"{port.row} {port.what} listens more than {MOST.get(port.what, 1)} times")
    return out


def test_every_port_is_named_in_the_documentation(running: Exposed) -> None:
    """Outside listens what the table of ports names; Spark's own ports are for this machine."""
    machine = Machine.look()
    assert undocumented(machine, running) == []
    found = {(port.row, port.what) for one in machine.open if (port := known_as(one, machine, running)) is not None}
    assert found >= {
        ("of the node", ""),
        ("for pushed rows", ""),
        ("of metrics and probes", ""),
        ("of ZooKeeper", ""),
        (LOCAL_SPARK, "the driver"),
        (LOCAL_SPARK, "its blocks"),
        (LOCAL_SPARK, "the gateway of PySpark"),
    }


SURPRISE = """
import socket, sys
listening, bound = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
listening.bind(("127.0.0.1", 0)); listening.listen(); bound.bind(("127.0.0.1", 0))
print(listening.getsockname()[1], bound.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("sign", ["", "org.apache.spark.deploy.SparkSubmit", "unbroken"])
def test_a_port_that_is_not_named_is_found(running: Exposed, sign: str) -> None:
    """Also if it listens on the loopback interface only, and whatever its process calls itself."""
    with subprocess.Popen(
        [sys.executable, "-c", SURPRISE, sign], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as surprise:
        assert surprise.stdout is not None and surprise.stdin is not None
        tcp, udp = surprise.stdout.readline().split()
        found = sorted(undocumented(Machine.look(), running))
        surprise.stdin.close()
    assert len(found) == 2
    assert f"tcp 127.0.0.1:{tcp} of" in found[0] and f"udp 127.0.0.1:{udp} of" in found[1]


def test_the_directory_of_a_run_is_private(running: Exposed) -> None:
    assert stat.S_IMODE(running.cluster.directory.stat().st_mode) == 0o700


def test_a_secret_is_nowhere_but_in_the_environment_of_the_nodes(running: Exposed) -> None:
    canary, cluster = running.canary, running.cluster
    for process in processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            assert canary not in " ".join(process.cmdline()), "in the list of processes"
    assert canary not in msgspec.json.encode(cluster.status()).decode()
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
