"""What is kept in ZooKeeper below ``/unbroken/<flow>``, and how it is read.

| path | written by | content |
|---|---|---|
| ``members/<node>`` | each node, ephemeral | where it is reached, the run of its disk and the code of its file |
| ``disks/<node>`` | a node that misses the layout of its run, ephemeral | what its disk holds, for `unbroken adopt` |
| ``layout`` | the controller, compare-and-set | which node hosts which replica, and which replicas count |
| ``in-sync`` | ingress nodes, compare-and-set | the members of the ingress and its leader |
| ``topology`` | the controller, with the first layout | the run, and what subscribers have to know about the flow |
| ``stopped/<replica>`` | whoever sees it | why a replica does not go on although its node is well |
| ``suspected/<node>~<by>`` | the node that misses another, ephemeral | who does not answer whom, and why |
| ``caught-up/<replica>`` | the replica's node | a joining replica keeps up with its peers |
| ``draining/<node>`` | `unbroken drain` | this node is to be left |
| ``renewed/<replica>`` | `unbroken reinit` | this replica is to be built again |
| ``paused`` | `unbroken pause`; `unbroken resume` removes it | since when and why no source is to be read |
| ``code/<generation>`` | `unbroken upgrade`, the first by the nodes | the text and the shape of the user's code |
| ``upgrade`` | `unbroken upgrade`; the controller | the generation to go over to; or why it is refused |
| ``switched/<shard>`` | the shard's nodes | its results have taken the place of its predecessor's |
| ``orders/<shard>``, ``orders/<shard>/<number>`` | the shard's leader | who leads, and its orders (`order_zookeeper`) |
| ``history/e<number>`` | every node | sentences |
| ``controller`` | candidates | kazoo's election |
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from unbroken.coordination.client import SealedClient
from unbroken.coordination.ensemble import client_options
from unbroken.errors import Unreachable
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.ingress.pause import Pause
from unbroken.protocol.placement.adoption import DiskReport
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.run import Run
from unbroken.security.sealing import ForgedDocument

RETRY_FIRST_S = 0.1
RETRY_LONGEST_S = 0.5
"""Pause between attempts to reach ZooKeeper. A session has a few seconds to come back before its node counts as
lost, so attempts must not become rare however long ZooKeeper was away."""


@dataclass(frozen=True)
class Member:
    """What a node tells the others about itself."""

    node: NodeId
    address: str
    push: str
    host: str
    pid: int
    incarnation: str
    disk: str = ""
    standby: bool = False
    run: str = ""
    code: str = ""
    """The digest of the code that the node was given."""

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Member:
        return cls(**json.loads(data))


@dataclass(frozen=True)
class Suspicion:
    """A node that does not answer another, as that one says; gone with the session of the one who says so."""

    suspect: NodeId
    by: NodeId
    reason: str

    @property
    def name(self) -> str:
        return f"{self.suspect}~{self.by}"

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Suspicion:
        return cls(**json.loads(data))


@dataclass(frozen=True)
class SinkInfo:
    """Where the results of a sink come from, and whether clients may subscribe to it."""

    part: str
    shards: int
    client: bool


def root_of(flow: str) -> str:
    return f"/unbroken/{flow}"


def connect(address: str, session_timeout_s: float, deadline_s: float = 20, *, token: str) -> SealedClient:
    """A client whose session comes back within about half a second of ZooKeeper, however long that was unavailable.

    Every session with ZooKeeper is opened here: with what ``token`` and the options of the address say.
    """
    options = client_options(address)
    client = SealedClient(
        token, timeout=session_timeout_s, connection_retry=_retry(), command_retry=_retry(), **options
    )
    try:
        client.start(timeout=deadline_s)
    except KazooTimeoutError:
        client.close()
        raise Unreachable(
            f"no ZooKeeper answers at {options['hosts']}. Start the flow with `unbroken run`, or give the address of "
            "the ensemble it uses with --zookeeper HOST:PORT."
        ) from None
    if "sasl_options" in options:
        _check_user(client, options["hosts"], deadline_s)
    return client


def _check_user(client: SealedClient, hosts: str, deadline_s: float) -> None:
    """Raise Unreachable if the user is refused: kazoo reports the session before it is authenticated."""
    try:
        client.exists_async("/").get(timeout=deadline_s)
    except (KazooException, KazooTimeoutError) as error:
        client.stop()
        client.close()
        what = f"the ZooKeeper at {hosts} refuses the user of its SASL options ({type(error).__name__})"
        raise Unreachable(f"{what}. Check user and password.") from None


def _retry() -> KazooRetry:
    # Kazoo multiplies the pause with a random factor each time: without growth it would shrink towards nothing.
    return KazooRetry(max_tries=-1, delay=RETRY_FIRST_S, backoff=1.5, max_jitter=0.2, max_delay=RETRY_LONGEST_S)


def read_members(client: KazooClient, flow: str) -> dict[NodeId, Member]:
    out: dict[NodeId, Member] = {}
    for name, data in _children(client, f"{root_of(flow)}/members").items():
        out[name] = Member.from_bytes(data)
    return out


def read_layout(client: KazooClient, flow: str) -> Layout | None:
    try:
        return layout_from(client.get(f"{root_of(flow)}/layout")[0])
    except NoNodeError:
        return None


def read_stopped(client: KazooClient, flow: str) -> dict[ReplicaId, str]:
    """Replicas that stopped on their own, and why."""
    found = _children(client, f"{root_of(flow)}/stopped")
    return {ReplicaId.parse(name): data.decode(errors="replace") for name, data in found.items()}


def read_suspicions(client: KazooClient, flow: str) -> list[Suspicion]:
    return [Suspicion.from_bytes(data) for data in _children(client, f"{root_of(flow)}/suspected").values()]


def read_in_sync(client: KazooClient, flow: str) -> InSync | None:
    found = read_in_sync_document(client, flow)
    return None if found is None else found.sync


def read_in_sync_document(client: KazooClient, flow: str) -> InSyncDocument | None:
    try:
        data, stat = client.get(f"{root_of(flow)}/in-sync")
    except NoNodeError:
        return None
    return in_sync_from(data, stat.version)


def read_topology(client: KazooClient, flow: str) -> dict[str, Any]:
    """The document that `topology_bytes` wrote, of a flow with a layout."""
    value: dict[str, Any] = json.loads(client.get(f"{root_of(flow)}/topology")[0])
    return value


def run_in(topology: dict[str, Any]) -> Run:
    """The run in the document that `topology_bytes` wrote."""
    return Run(str(topology["run"]), frozenset(topology["supersedes"]))


def read_disks(client: KazooClient, flow: str) -> dict[NodeId, dict[str, Any]]:
    """What nodes that miss the layout of their run say of their disks, and the topology document they have kept."""
    return {name: json.loads(data) for name, data in _children(client, f"{root_of(flow)}/disks").items()}


def disk_bytes(report: DiskReport, topology: dict[str, Any] | None) -> bytes:
    return json.dumps({"report": report.to_json(), "topology": topology}).encode()


def read_wish(client: KazooClient, flow: str) -> int | None:
    """The generation that the flow is to go over to; None if there is none, or it was refused."""
    return read_upgrade(client, flow).get("generation")


def read_upgrade(client: KazooClient, flow: str) -> dict[str, Any]:
    """What `wish_bytes` or `refusal_bytes` wrote last; empty if the code was never to change."""
    try:
        value: dict[str, Any] = json.loads(client.get(f"{root_of(flow)}/upgrade")[0])
        return value
    except (NoNodeError, ForgedDocument):
        return {}


def wish_bytes(generation: int) -> bytes:
    return json.dumps({"generation": generation}).encode()


def refusal_bytes(reason: str) -> bytes:
    return json.dumps({"refused": reason}).encode()


def read_pause(client: KazooClient, flow: str) -> Pause | None:
    """Whether the sources are not to be read."""
    try:
        return Pause.from_json(json.loads(client.get(f"{root_of(flow)}/paused")[0]))
    except (NoNodeError, ForgedDocument):
        return None


def pause_bytes(pause: Pause) -> bytes:
    return json.dumps(pause.to_json()).encode()


def read_names(client: KazooClient, flow: str, part: str) -> list[str]:
    """The names of the documents below one part of a flow; each is read, because one without a seal does not count."""
    return list(_children(client, f"{root_of(flow)}/{part}"))


def read_history(client: KazooClient, flow: str) -> list[dict[str, Any]]:
    """The sentences of the flow's history, oldest first."""
    return [json.loads(data) for data in _children(client, f"{root_of(flow)}/history").values()]


def _children(client: KazooClient, path: str) -> dict[str, bytes]:
    """Names and data of the entries below ``path``, by name, without those that have vanished or are forged."""
    out: dict[str, bytes] = {}
    try:
        names = client.get_children(path)
    except NoNodeError:
        return out
    asked = {name: client.get_async(f"{path}/{name}") for name in sorted(names)}
    for name, answer in asked.items():
        with contextlib.suppress(NoNodeError, ForgedDocument):
            out[name] = answer.get()[0]
    return out


def layout_bytes(layout: Layout) -> bytes:
    return json.dumps(layout.to_json()).encode()


def layout_from(data: bytes) -> Layout:
    return Layout.from_json(json.loads(data))


def topology_bytes(topology: Topology, run: Run) -> bytes:
    """What subscribers have to know, and the run, whose id no other run of the flow ever has."""
    sinks = {
        consumer: {
            "part": producer,
            "shards": topology.segments[producer],
            "client": consumer in topology.client_sinks,
        }
        for producer, consumer in topology.edges
        if consumer in topology.sinks
    }
    owner = {"run": run.id, "supersedes": sorted(run.supersedes)}
    return json.dumps({**owner, "sinks": sinks}).encode()


def sinks_from(data: bytes) -> dict[str, SinkInfo]:
    """The sinks in the document that ``topology_bytes`` wrote, by name."""
    return {name: SinkInfo(**sink) for name, sink in json.loads(data)["sinks"].items()}


@dataclass(frozen=True)
class InSyncDocument:
    """The in-sync set as it is kept: of which run, and ``base``, which is added to the version that ZooKeeper counts.

    ZooKeeper counts from 0 again when the document is made anew, and members ignore a set of a lower version.
    """

    sync: InSync
    run: str = ""
    base: int = 0

    @property
    def stored_version(self) -> int:
        """The version of the document, as ZooKeeper counts."""
        return self.sync.version - self.base

    def to_bytes(self) -> bytes:
        sync = self.sync
        members = {"term": sync.term, "leader": sync.leader, "members": sorted(sync.members)}
        return json.dumps({**members, "run": self.run, "base": self.base}).encode()


def in_sync_from(data: bytes, version: int) -> InSyncDocument:
    value = json.loads(data)
    base = int(value["base"])
    sync = InSync(int(value["term"]), value["leader"], frozenset(value["members"]), base + version)
    return InSyncDocument(sync, str(value["run"]), base)
