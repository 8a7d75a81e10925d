"""Words for notices about nodes and the decisions of the controller."""

from __future__ import annotations

from unbroken.observe.notices.words import Topic, Words, names
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.notices import placement as n
from unbroken.protocol.values.run import WAYS, disks_of_runs

_FIRST, _SECOND, _THIRD = (ReplicaId(ShardId("per_user", 0), index) for index in range(3))
_STATS = tuple(ReplicaId(ShardId("stats", 0), index) for index in range(4))
_SHARED = ReplicaId(ShardId("parsed", 1), 0)
_COMING = ReplicaId(ShardId("totals@2", 0), 0)


def _dropped(it: n.ReplicasDropped) -> str:
    causes = [f"{node} lost" for node in it.lost]
    causes += [f"{node} has lost its disk" for node in it.without_disk]
    causes += [f"{replica} stopped" for replica in it.stopped]
    return f"{names(causes)}; no longer waiting for {names(it.replicas)}"


def _placed(it: n.ReplicaPlaced) -> str:
    match it.purpose:
        case n.Purpose.REDUNDANCY:
            return f"{it.replica} is placed on {it.node} to restore the redundancy of {it.replica.shard}"
        case n.Purpose.UPGRADE:
            return f"{it.replica} is placed on {it.node} for the code that comes"
        case n.Purpose.COPY:
            return f"{it.replica} is placed on {it.node} to hold a copy of {it.replica.shard}"
        case n.Purpose.RETURN:
            return f"{it.replica} is placed on {it.node}, which has returned, to have its place back"


def _renewed(it: n.ReplicaRenewed) -> str:
    how = "with its copy: " if it.whole_copy else "from its peer as "
    return f"{it.replica} on {it.node} is rebuilt {how}{names(it.newcomers)}"


def _taken_over(it: n.TakenOver) -> str:
    where = names(f"{replica} on {node}" for replica, node in zip(it.lost, it.nodes, strict=False))
    if it.replica is None:
        return f"{where} lost; its successor continues with the units that producers kept"
    whence = "from its copy" if it.from_copy else "with the units that producers kept"
    return f"{where} lost; {it.replica} takes over on {it.node} {whence}"


def _paused(it: n.FlowPaused) -> str:
    why = f" ({it.reason})" if it.reason else ""
    return f"the flow is paused{why}: its sources are not read until an operator runs `unbroken resume`"


def _missing(it: n.LayoutMissing) -> str:
    how = "continues without it" if it.running else "waits for it"
    return f"ZooKeeper has no layout of run {it.run}, and {it.node} {how}. {WAYS}."


def _foreign(it: n.LayoutForeign) -> str:
    return (
        f"the disk of {it.node} belongs to run {it.run}, and ZooKeeper has the layout of run {it.other_run}; nothing "
        f"was changed or deleted. {WAYS}."
    )


def _no_first(it: n.FirstLayoutRefused) -> str:
    owned = zip(it.runs, it.nodes, strict=False)
    return f"no first layout: {disks_of_runs(owned)}, and ZooKeeper has no layout of it. {WAYS}."


BEGINNING = Topic(
    "Beginning",
    (
        Words(
            n.FirstLayout,
            lambda it: f"first layout on {names(it.nodes)}",
            "all nodes are available, replicas are placed, the flow begins",
            "",
            (n.FirstLayout(("node-1", "node-2", "node-3")),),
        ),
        Words(
            n.NodeReady,
            lambda it: f"{it.node} is ready to take replicas",
            "a node has joined, or has returned with another disk",
            "",
            (n.NodeReady("node-4"),),
        ),
    ),
)

LOSSES = Topic(
    "Losses of nodes",
    (
        Words(
            n.ReplicasDropped,
            _dropped,
            "a session with ZooKeeper has ended, a disk was replaced, or a replica stopped; nothing is kept for these "
            "replicas any longer, others are built",
            "restart the node",
            (
                n.ReplicasDropped((_SECOND, _STATS[0]), lost=("node-2",)),
                n.ReplicasDropped((_SECOND,), without_disk=("node-2",)),
                n.ReplicasDropped((_SECOND,), stopped=(_SECOND,)),
            ),
        ),
        Words(
            n.LastReplicasAwaited,
            lambda it: f"still counting {names(it.replicas)}, as nothing else is left of the shard",
            "the last replica of a shard seems to be gone, and is waited for: results of the shard wait with it",
            "bring that node back with its disk. With [snapshots](recovery.md#snapshots), and its disk lost, the shard "
            "is restored from one",
            (n.LastReplicasAwaited((_STATS[0],)),),
        ),
        Words(
            n.NodeSuspected,
            lambda it: f"{it.node} suspects {it.suspect}: {it.detail}",
            "the [ring](strategies.md#who-notices) misses a node",
            "if it repeats: a machine that pauses, or a bad network. Longer `ring_misses` tolerate it",
            (
                n.NodeSuspected(
                    "node-1",
                    "node-2",
                    "per_user.0#0 on node-1 has had no answer from per_user.0#1 on node-2 for 3 pings (1.6 s)",
                ),
                n.NodeSuspected("node-1", "node-2", "the connection to node-2 broke"),
            ),
        ),
        Words(
            n.SuspicionEnded,
            lambda it: f"{it.node} hears {it.suspect} again",
            "the suspicion is over",
            "",
            (n.SuspicionEnded("node-1", "node-2"),),
        ),
        Words(
            n.WatchEnded,
            lambda it: f"{it.node} no longer watches {it.suspect}",
            "the replicas that it watched there are elsewhere",
            "",
            (n.WatchEnded("node-1", "node-2"),),
        ),
        Words(
            n.ControllerReplaced,
            lambda it: f"{it.node} does not answer and is no longer the controller",
            "another node decides about layouts",
            "",
            (n.ControllerReplaced("node-1"),),
        ),
    ),
)

DOCUMENTS = Topic(
    "Documents that are missing, forged, or of another run",
    (
        Words(
            n.LayoutMissing,
            _missing,
            "ZooKeeper has lost its data, or it is another one than the run was started with. No new run is begun",
            "give the right `--zookeeper`, or [adopt](recovery.md#zookeeper-has-lost-its-data) the run",
            (n.LayoutMissing("node-1", "4b5f", False), n.LayoutMissing("node-1", "4b5f", True)),
        ),
        Words(
            n.FirstLayoutRefused,
            _no_first,
            "the controller finds disks of a run whose documents are missing",
            "the same",
            (n.FirstLayoutRefused(("node-1", "node-2"), ("4b5f", "4b5f")),),
        ),
        Words(
            n.LayoutForeign,
            _foreign,
            "a node finds the documents of another run. A starting node ends with this error; a running one continues",
            "the same",
            (n.LayoutForeign("node-1", "4b5f", "90ac"),),
        ),
        Words(
            n.DocumentForged,
            lambda it: f"{it.path} in ZooKeeper does not carry the seal of the flow's token and is ignored",
            "a client that is not part of the flow wrote into its part of ZooKeeper, or the token was replaced",
            "find out who may write there; restart nodes that have another token",
            (n.DocumentForged("/unbroken/clicks/code/2"),),
        ),
    ),
)

REPAIR = Topic(
    "Repair",
    (
        Words(
            n.ReplicaPlaced,
            _placed,
            "a replica begins to join there: as a replacement, for an upgrade, as a copy of the state "
            '(`ha="passive"`), or because a node that was unavailable gets its shard back (load sharing)',
            "",
            (
                n.ReplicaPlaced(_THIRD, "node-3", n.Purpose.REDUNDANCY),
                n.ReplicaPlaced(_COMING, "node-1", n.Purpose.UPGRADE),
                n.ReplicaPlaced(_SECOND, "node-3", n.Purpose.COPY),
                n.ReplicaPlaced(_SHARED, "node-2", n.Purpose.RETURN),
            ),
        ),
        Words(
            n.ReplicaJoined,
            lambda it: f"{it.replica} on {it.node} {'holds a copy' if it.held else 'has caught up'}",
            "it counts as redundancy",
            "",
            (n.ReplicaJoined(_THIRD, "node-3"), n.ReplicaJoined(_THIRD, "node-3", held=True)),
        ),
        Words(
            n.ShardRedundant,
            lambda it: f"{it.shard} is redundant{' again' if it.again else ''} after {it.took_s:.1f} s",
            "the shard has as many replicas as it should, that long after the loss (or, during an upgrade, after its "
            "first replica was placed)",
            "",
            (n.ShardRedundant(_FIRST.shard, 9.1), n.ShardRedundant(_COMING.shard, 12.5, again=False)),
        ),
        Words(
            n.NodeDraining,
            lambda it: f"{it.node} is being drained of {it.replicas} replicas",
            "an operator ran `unbroken drain`",
            "",
            (n.NodeDraining("node-2", 3),),
        ),
        Words(
            n.NodeDrained,
            lambda it: f"{it.node} is drained: nothing depends on it any longer",
            "it can be stopped",
            "",
            (n.NodeDrained("node-2"),),
        ),
        Words(
            n.ReplicaRenewed,
            _renewed,
            "an operator ran `unbroken reinit`; with whole copies, all of the copy is rebuilt",
            "",
            (
                n.ReplicaRenewed(_SECOND, "node-2", (_THIRD,)),
                n.ReplicaRenewed(_SECOND, "node-2", (_THIRD, _STATS[2]), whole_copy=True),
            ),
        ),
    ),
)

TAKEOVERS = Topic(
    "Takeovers",
    (
        Words(
            n.TakenOver,
            _taken_over,
            "a passive standby starts to work, or a spare begins to rebuild the state (upstream backup)",
            "",
            (
                n.TakenOver((_FIRST,), ("node-1",), _SECOND, "node-2", from_copy=True),
                n.TakenOver((_FIRST,), ("node-1",), _SECOND, "node-2"),
                n.TakenOver((_FIRST,), ("node-1",)),
            ),
        ),
        Words(
            n.PlaceReturned,
            lambda it: f"{it.replica} has the place of {it.replica.shard} back on {it.node}",
            "load sharing: a node that was unavailable works on its shard again",
            "",
            (n.PlaceReturned(_SHARED, "node-2"),),
        ),
        Words(
            n.TurnPassed,
            lambda it: f"{it.replica} on {it.node} delivers the results of {it.replica.shard} from here on",
            "at most once: another replica has the turn",
            "",
            (n.TurnPassed(_SECOND, "node-2"),),
        ),
    ),
    "These are about [strategies](strategies.md) with one working replica, and delivery at most once.",
)

PAUSES = Topic(
    "Pauses",
    (
        Words(
            n.FlowPaused,
            _paused,
            "an operator ran `unbroken pause`",
            "`unbroken resume`, when the reason is gone",
            (n.FlowPaused(), n.FlowPaused("disks are exchanged")),
        ),
        Words(
            n.FlowResumed,
            lambda it: f"the flow resumes after a pause of {it.paused_s:.1f} s: its sources are read again",
            "an operator ran `unbroken resume`",
            "",
            (n.FlowResumed(61.0),),
        ),
    ),
)

COPIES = Topic(
    "Whole copies",
    (
        Words(
            n.CopyDropped,
            lambda it: f"the copy on {names(it.nodes)} is dropped as a whole: {names(it.replicas)}",
            "one replica of a copy was lost, and so is all of it",
            "",
            (n.CopyDropped(("node-2",), (_SECOND, _STATS[1])),),
        ),
        Words(
            n.CopyPlaced,
            lambda it: (
                f"{names(it.replicas)} are placed on {it.node} to complete the copy there"
                if it.completes
                else f"a copy is placed on {it.node} to restore redundancy: {names(it.replicas)}"
            ),
            "another copy begins, or one gets what it lacks",
            "",
            (n.CopyPlaced("node-3", (_THIRD, _STATS[2])), n.CopyPlaced("node-3", (_THIRD,), completes=True)),
        ),
        Words(
            n.CopyJoined,
            lambda it: f"the copy on {it.node} has caught up: {names(it.replicas)}",
            "it counts",
            "",
            (n.CopyJoined("node-3", (_THIRD, _STATS[2])),),
        ),
        Words(
            n.FlowRedundant,
            lambda it: f"the dataflow is redundant again after {it.took_s:.1f} s",
            "there are as many copies as there should be",
            "",
            (n.FlowRedundant(14.0),),
        ),
    ),
    'With `pairs="cluster"` only, a [baseline](recovery.md#whole-copies-as-a-baseline).',
)
