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
| ``orders/<shard>``, ``orders/<shard>/<number>`` | the shard's leader | who leads, and its orders (`leader`) |
| ``history/e<number>`` | every node | notices; those of a change of other documents together with it |
| ``controller`` | candidates | kazoo's election |
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from unbroken.codecs.codec import Codec, Undecodable
from unbroken.coordination.client import SealedClient
from unbroken.coordination.ensemble import client_options
from unbroken.errors import Unreachable
from unbroken.protocol.ingress.log import InSync
from unbroken.protocol.placement.adoption import DiskReport
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.layout import Layout, Topology
from unbroken.protocol.values.notices import Reported
from unbroken.protocol.values.notices.upgrades import UpgradeRefused
from unbroken.protocol.values.pause import Pause
from unbroken.protocol.values.run import RunIdentity
from unbroken.security.sealing import ForgedDocument

log = logging.getLogger(__name__)

RETRY_FIRST_S = 0.1
RETRY_LONGEST_S = 0.5
"""Pause between attempts to reach ZooKeeper. A session has a few seconds to come back before its node counts as
lost, so attempts must not become rare however long ZooKeeper was away."""


ENTRIES_LOGGED = 1000
"""Unreadable entries of a history that are remembered: it is read time and again, and each is logged once."""


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
        return MEMBER.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Member:
        return MEMBER.decode(data)


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
        return SUSPICION.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Suspicion:
        return SUSPICION.decode(data)


@dataclass(frozen=True)
class SinkInfo:
    """Where the results of a sink come from, and whether clients may subscribe to it."""

    part: str
    shards: int
    client: bool


@dataclass(frozen=True)
class FlowDocument:
    """The run, whose id no other run of the flow ever has, and the sinks by name, which subscribers have to know."""

    run: RunIdentity
    sinks: Mapping[str, SinkInfo]


@dataclass(frozen=True)
class DiskDocument:
    """What a node that misses the layout of its run has on its disk, and the document about the flow it has kept."""

    report: DiskReport
    flow: FlowDocument | None


@dataclass(frozen=True)
class UpgradeDocument:
    """The generation that a flow is to go over to, or why it is ``refused``."""

    generation: int | None = None
    refused: UpgradeRefused | None = None


@dataclass(frozen=True)
class _StoredSync:
    term: int
    leader: NodeId
    members: frozenset[NodeId]
    run: str
    base: int


MEMBER = Codec(Member, "member", readable=True)
SUSPICION = Codec(Suspicion, "suspicion", readable=True)
LAYOUT = Codec(Layout, "layout", readable=True)
FLOW = Codec(FlowDocument, "flow", readable=True)
DISK = Codec(DiskDocument, "disk", readable=True)
UPGRADE = Codec(UpgradeDocument, "upgrade", readable=True)
PAUSE = Codec(Pause, "pause", readable=True)
REPORTED = Codec(Reported, "reported", readable=True)
_STORED_SYNC = Codec(_StoredSync, "in-sync", readable=True)


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
        return LAYOUT.decode(client.get(f"{root_of(flow)}/layout")[0])
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


def read_flow_document(client: KazooClient, flow: str) -> FlowDocument:
    """The document about the run and the sinks of a flow with a layout."""
    return FLOW.decode(client.get(f"{root_of(flow)}/topology")[0])


def read_disks(client: KazooClient, flow: str) -> dict[NodeId, DiskDocument]:
    """What nodes that miss the layout of their run say of their disks."""
    return {name: DISK.decode(data) for name, data in _children(client, f"{root_of(flow)}/disks").items()}


def read_wish(client: KazooClient, flow: str) -> int | None:
    """The generation that the flow is to go over to; None if there is none, or it was refused."""
    return read_upgrade(client, flow).generation


def read_upgrade(client: KazooClient, flow: str) -> UpgradeDocument:
    """What was wished for or refused last; neither if the code was never to change."""
    try:
        return UPGRADE.decode(client.get(f"{root_of(flow)}/upgrade")[0])
    except (NoNodeError, ForgedDocument):
        return UpgradeDocument()


def read_pause(client: KazooClient, flow: str) -> Pause | None:
    """Whether the sources are not to be read."""
    try:
        return PAUSE.decode(client.get(f"{root_of(flow)}/paused")[0])
    except (NoNodeError, ForgedDocument):
        return None


def read_names(client: KazooClient, flow: str, part: str) -> list[str]:
    """The names of the documents below one part of a flow; each is read, because one without a seal does not count."""
    return list(_children(client, f"{root_of(flow)}/{part}"))


def read_history(client: KazooClient, flow: str) -> list[Reported]:
    """The notices of the flow's history, oldest first; without entries that cannot be read."""
    found = [reported_from(name, data) for name, data in _children(client, f"{root_of(flow)}/history").items()]
    return [reported for reported in found if reported is not None]


def reported_from(name: str, data: bytes) -> Reported | None:
    """An entry of the history; None if it cannot be read, which is logged: it must not hide the others."""
    try:
        return REPORTED.decode(data)
    except Undecodable as error:
        _log_unreadable(name, str(error))
        return None


@lru_cache(ENTRIES_LOGGED)
def _log_unreadable(name: str, reason: str) -> None:
    log.warning("the entry %s of the history is left out: %s", name, reason)


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


def flow_document(topology: Topology, run: RunIdentity) -> FlowDocument:
    """What subscribers have to know about a run."""
    ends = [(producer, consumer) for producer, consumer in topology.edges if consumer in topology.sinks]
    sinks = {
        consumer: SinkInfo(producer, topology.segments[producer], consumer in topology.client_sinks)
        for producer, consumer in ends
    }
    return FlowDocument(run, sinks)


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
        return _STORED_SYNC.encode(_StoredSync(sync.term, sync.leader, sync.members, self.run, self.base))


def in_sync_from(data: bytes, version: int) -> InSyncDocument:
    stored = _STORED_SYNC.decode(data)
    sync = InSync(stored.term, stored.leader, stored.members, stored.base + version)
    return InSyncDocument(sync, stored.run, stored.base)
