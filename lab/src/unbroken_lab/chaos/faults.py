"""How each fault is done to the processes of a local cluster."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import psutil
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from unbroken.coordination.documents import connect
from unbroken.errors import UnbrokenError
from unbroken.local.launcher import LocalCluster
from unbroken.operations import upgrade as upgrading
from unbroken_lab.chaos.schedule import Fault, Kind

GONE_DEADLINE_S = 10.0
"""How long the last descendants of a killed node may take to disappear before its directory is deleted."""

SAME_IN_OTHER_WORDS = ('F.sum("n")', 'F.sum(F.col("n"))')
"""A change of the flow's last segment after which it is other code with the same results."""

ASK_S = 5.0

LAUNCHER = "org.apache.spark.launcher.Main"
"""A JVM that lives for a second and only makes the command line of the one that matters."""


@dataclass(frozen=True)
class Effect:
    """What was done; ``undo`` ends a fault that lasts. A fault that found nothing to hit was not ``done``."""

    what: str
    done: bool = True
    undo: Callable[[], None] | None = None


def strike(cluster: LocalCluster, fault: Fault) -> Effect:
    """Do it. Whoever tends the cluster must not do so meanwhile: it would restart a node that is being wiped."""
    return STRIKES[fault.kind](cluster, fault.target)


def jvm_of(cluster: LocalCluster, node: str) -> psutil.Process | None:
    """The JVM of a node's Spark; None while the node has none."""
    try:
        descendants = psutil.Process(cluster.nodes[node].pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return None
    for process in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == "java" and LAUNCHER not in process.cmdline():
                return process
    return None


def _kill_node(cluster: LocalCluster, node: str) -> Effect:
    process = cluster.nodes[node]
    if not process.alive():
        return Effect(f"{node} is dead already", done=False)
    process.kill9()
    return Effect(f"kill -9 of {node} (process {process.pid})")


def _kill_jvm(cluster: LocalCluster, node: str) -> Effect:
    jvm = jvm_of(cluster, node)
    if jvm is None:
        return Effect(f"{node} has no JVM", done=False)
    with contextlib.suppress(psutil.NoSuchProcess):
        jvm.kill()
    return Effect(f"kill -9 of the JVM of {node} (process {jvm.pid})")


def _freeze_node(cluster: LocalCluster, node: str) -> Effect:
    process = cluster.nodes[node]
    if not process.alive():
        return Effect(f"{node} is dead", done=False)
    process.freeze()
    return Effect(f"{node} is frozen (process {process.pid})", undo=process.thaw)


def _freeze_jvm(cluster: LocalCluster, node: str) -> Effect:
    jvm = jvm_of(cluster, node)
    if jvm is None:
        return Effect(f"{node} has no JVM", done=False)
    return _frozen(jvm, f"the JVM of {node}")


def _kill_zookeeper(cluster: LocalCluster, _: str) -> Effect:
    if not cluster.zookeeper.alive():
        return Effect("ZooKeeper is dead already", done=False)
    cluster.zookeeper.kill9()
    return Effect("kill -9 of ZooKeeper")


def _freeze_zookeeper(cluster: LocalCluster, _: str) -> Effect:
    pid = cluster.zookeeper.pid
    if pid is None:
        return Effect("ZooKeeper is dead", done=False)
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return Effect("ZooKeeper is dead", done=False)
    return _frozen(process, "ZooKeeper")


def _wipe_node(cluster: LocalCluster, node: str) -> Effect:
    process = cluster.nodes[node]
    process.kill9()
    if process.wait(GONE_DEADLINE_S) is None:
        raise UnbrokenError(f"{node} (process {process.pid}) was killed and did not end within {GONE_DEADLINE_S:g} s")
    shutil.rmtree(cluster.directory / node)
    return Effect(f"kill -9 of {node} and its directory deleted")


def _kill_everything(cluster: LocalCluster, _: str) -> Effect:
    for process in cluster.nodes.values():
        process.kill9()
    cluster.zookeeper.kill9()
    return Effect("kill -9 of all nodes and ZooKeeper")


def _upgrade(cluster: LocalCluster, _: str) -> Effect:
    """Give the flow other code that computes the same, so that results can be held against the same reference."""
    file = cluster.directory.parent / "upgraded.py"
    text = cluster.flow_file.read_text()
    changed = text.replace(*SAME_IN_OTHER_WORDS)
    assert changed != text, f"{cluster.flow_file} has nothing to say in other words"
    file.write_text(changed)
    try:
        client = connect(cluster.zookeeper.address, ASK_S, ASK_S, token=cluster.token)
    except UnbrokenError:
        return Effect("ZooKeeper is away, no upgrade", done=False)
    try:
        program = upgrading.propose(client, cluster.flow.name, file)
    except (UnbrokenError, KazooException, KazooTimeoutError) as error:
        return Effect(f"no upgrade: {error}", done=False)
    finally:
        client.stop()
        client.close()
    return Effect(f"upgrade to generation {program.generation}")


def _frozen(process: psutil.Process, what: str) -> Effect:
    """Stop one process. Its start time is remembered, so that thawing never hits another one with its number."""

    def thaw() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()

    try:
        process.suspend()
    except psutil.NoSuchProcess:
        return Effect(f"{what} is dead", done=False)
    return Effect(f"{what} is frozen (process {process.pid})", undo=thaw)


STRIKES: dict[Kind, Callable[[LocalCluster, str], Effect]] = {
    Kind.KILL_NODE: _kill_node,
    Kind.KILL_JVM: _kill_jvm,
    Kind.FREEZE_NODE: _freeze_node,
    Kind.FREEZE_JVM: _freeze_jvm,
    Kind.WIPE_NODE: _wipe_node,
    Kind.KILL_ZOOKEEPER: _kill_zookeeper,
    Kind.FREEZE_ZOOKEEPER: _freeze_zookeeper,
    Kind.RESTART_ALL: _kill_everything,
    Kind.UPGRADE: _upgrade,
}
