"""Words for notices about processes and upgrades of the code that they run."""

from __future__ import annotations

from unbroken.observe.notices.words import Topic, Words, names
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.notices import processes as n
from unbroken.protocol.values.notices import upgrades as u

_COMING = tuple(ReplicaId(ShardId("totals@2", 0), index) for index in range(2))
_REFUSED = ReplicaId(ShardId("totals@3", 0), 0)


def ending(code: int) -> str:
    """How a process has ended."""
    return f"killed by signal {-code}" if code < 0 else f"ended with code {code}"


def _spark(it: n.SparkEnded) -> str:
    match it.how:
        case n.SparkEnd.JVM_ENDED:
            how = f"the JVM of Spark has ended with code {it.code}"
        case n.SparkEnd.SUBMIT_ENDED:
            how = "the JVM of spark-submit has ended"
        case n.SparkEnd.UNREACHABLE:
            how = f"the JVM of Spark cannot be reached ({it.detail})"
        case n.SparkEnd.STOPPED:
            how = "Spark has stopped"
    return f"{how} on {it.node}, and with it the node"


def _executors(ids: tuple[str, ...]) -> str:
    return f"executor {ids[0]}" if len(ids) == 1 else f"executors {names(ids)}"


def _executors_lost(it: n.ExecutorsLost) -> str:
    count = "one that is left" if it.left == 1 else f"{it.left} that are left"
    rest = f"its tasks are rerun on the {count}" if it.left else "it has none, and waits for another one"
    return f"{it.node} has lost {_executors(it.executors)} of Spark; {rest}"


def _because(detail: str) -> str:
    return f": {detail}" if detail else ""


def _refused(it: u.UpgradeRefused) -> str:
    reason = "it was withdrawn" if it.replica is None else f"{it.replica} stopped: {it.detail}"
    return f"generation {it.generation} is refused, generation {it.running} continues: {reason}"


UPGRADES = Topic(
    "Upgrades",
    (
        Words(
            u.UpgradePrepared,
            lambda it: f"generation {it.generation} of the code is being prepared next to generation {it.running}",
            "an operator ran `unbroken upgrade`",
            "",
            (u.UpgradePrepared(2, 1),),
        ),
        Words(
            u.UpgradeReady,
            lambda it: f"generation {it.generation} is ready; its results count from the next pulse on",
            "the switch",
            "",
            (u.UpgradeReady(2),),
        ),
        Words(
            u.UpgradeDone,
            lambda it: f"generation {it.generation} has taken over: {names(it.parts)}; the code before it has ended",
            "done",
            "",
            (u.UpgradeDone(2, ("scaled@2", "totals@2")),),
        ),
        Words(
            u.UpgradeSetBack,
            lambda it: f"{names(it.replicas)} lost before generation {it.generation} was ready",
            "nodes were lost; these parts begin again with a later copy",
            "",
            (u.UpgradeSetBack(2, _COMING),),
        ),
        Words(
            u.UpgradeRefused,
            _refused,
            "the code cannot continue with the state, or failed; or an operator has withdrawn it",
            "correct the code and upgrade again; the flow is not affected",
            (
                u.UpgradeRefused(3, 2, _REFUSED, "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] ..."),
                u.UpgradeRefused(3, 2),
            ),
        ),
    ),
)

SPARK = Topic(
    "Spark",
    (
        Words(
            n.SparkEnded,
            _spark,
            "the node ends, and its supervisor restarts it; results come from the others",
            "-9 is often the system's memory killer: more memory, or a smaller `node_memory`",
            (
                n.SparkEnded("node-2", n.SparkEnd.JVM_ENDED, code=-9),
                n.SparkEnded("node-2", n.SparkEnd.SUBMIT_ENDED),
                n.SparkEnded("node-2", n.SparkEnd.UNREACHABLE, detail="ConnectionResetError"),
                n.SparkEnded("node-2", n.SparkEnd.STOPPED),
            ),
        ),
        Words(
            n.ExecutorsLost,
            _executors_lost,
            "on a Spark cluster: Spark reruns the tasks. Without executors the replicas of this node wait, and their "
            "siblings continue",
            "if none is left, look at the Spark cluster",
            (
                n.ExecutorsLost("node-2", ("3",), 1),
                n.ExecutorsLost("node-2", ("3",), 2),
                n.ExecutorsLost("node-2", ("3",), 0),
            ),
        ),
        Words(
            n.ExecutorsAdded,
            lambda it: f"{it.node} has got {_executors(it.executors)} of Spark",
            "Spark has replaced it",
            "",
            (n.ExecutorsAdded("node-2", ("4",)),),
        ),
    ),
)

NODES = Topic(
    "Nodes that end, and peers that misbehave",
    (
        Words(
            n.EventUnhandled,
            lambda it: f"{it.node} ends, as it cannot handle {it.event}: {it.detail}",
            "the node has found its own state wrong and does not continue with it; a supervisor restarts it from its "
            "disk",
            "report a defect, with the log of the node",
            (n.EventUnhandled("node-1", "Ack from node-2", "InvariantViolation: ..."),),
        ),
        Words(
            n.LoopStalled,
            lambda it: f"the loop of {it.node} has taken no event for {it.stalled_s:.0f} s; the node ends",
            "the node is stuck, and a supervisor restarts it",
            "look in its log for what it waited for",
            (n.LoopStalled("node-1", 30.0),),
        ),
        Words(
            n.ThreadFailed,
            lambda it: f"thread {it.thread} of {it.node} has failed ({it.detail}); the node ends, others continue",
            "a thread that the node needs ended unexpectedly; a supervisor restarts the node",
            "report it, with the log of the node",
            (n.ThreadFailed("node-1", "ingress", "SystemExit: 1"),),
        ),
        Words(
            n.PeerFlooding,
            lambda it: f"{it.peer} sends more than {it.node} can handle; its link is dropped",
            "a peer floods the node; others are not affected, and it may link again",
            "find out who it is",
            (n.PeerFlooding("node-1", "client-7f3a"),),
        ),
        Words(
            n.MessageRefused,
            lambda it: f"{it.node} refuses a message of {it.peer} that makes no sense ({it.message}): {it.detail}",
            "a peer that holds the token sends what no node sends in earnest; the message changes nothing, and further "
            "ones of its kind are only counted (`unbroken_messages_refused_total`)",
            "restart the peer with the version of the others; report a defect if it has that version",
            (n.MessageRefused("node-1", "node-2", "Ack", "per_user.0#1 is on node-3"),),
        ),
    ),
)

LOCAL = Topic(
    "Reports of `unbroken run`",
    (
        Words(
            n.ProcessDied,
            lambda it: f"{it.node} is dead: {ending(it.code)}; its log is {it.log}",
            "a local node has ended",
            "",
            (n.ProcessDied("node-2", -9, ".unbroken/clicks/logs/node-2.log"),),
        ),
        Words(
            n.ProcessRestarted,
            lambda it: f"{it.node} is restarted",
            "after a second at first, then after longer and longer pauses; while the flow starts, two times at most, "
            "and then the run ends with the end of its log",
            "if it dies repeatedly, its log says why",
            (n.ProcessRestarted("node-2"),),
        ),
        Words(
            n.ZooKeeperRestarted,
            lambda it: "ZooKeeper died and was restarted on its data",
            "results continued",
            "",
            (n.ZooKeeperRestarted(),),
        ),
        Words(
            n.ZooKeeperDown,
            lambda it: f"ZooKeeper died and cannot be restarted yet; results continue without it: {it.detail}",
            "repair waits",
            "correct the cause that is named",
            (n.ZooKeeperDown("the port is taken"),),
        ),
    ),
    "These are in the terminal, not in the history.",
)

PAGE = Topic(
    "Reports of the page",
    (
        Words(
            n.NodeDead,
            lambda it: f"{it.node} is dead{_because(it.detail)}",
            "the process of a local node has ended",
            "see its log",
            (n.NodeDead("node-2", "killed by signal 9"),),
        ),
        Words(
            n.NodeGone,
            lambda it: f"{it.node} is lost, {it.detail or 'nothing is heard of it'}",
            "the session of a node with ZooKeeper has ended",
            "restart it",
            (n.NodeGone("node-2"),),
        ),
        Words(
            n.NodeSilent,
            lambda it: f"{it.node} does not answer{_because(it.detail)}",
            "it is busy, frozen or unreachable from the page",
            "look at the machine",
            (n.NodeSilent("node-2", "no answer within 2 s"),),
        ),
        Words(
            n.NodeBack,
            lambda it: f"{it.node} answers again" if it.silent else f"{it.node} is back",
            "it runs again",
            "",
            (n.NodeBack("node-2"), n.NodeBack("node-2", silent=True)),
        ),
    ),
    "The page asks all nodes once a second and notes what it sees; these are on the page only.",
)
