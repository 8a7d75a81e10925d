"""An upgrade amid the faults of a schedule: other code with the same results."""

from __future__ import annotations

from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from unbroken.coordination.documents import connect
from unbroken.errors import UnbrokenError
from unbroken.local.launcher import LocalCluster
from unbroken.operations import upgrade as upgrading

SAME_IN_OTHER_WORDS = ('F.sum("n")', 'F.sum(F.col("n"))')
"""A change of the flow's last segment after which it is other code with the same results."""

ASK_S = 5.0


def give_other_code(cluster: LocalCluster) -> tuple[str, bool]:
    """Give the flow code that computes the same, so that results can be compared with the same reference.

    What was done, and whether it was: an upgrade needs ZooKeeper.
    """
    file = cluster.directory.parent / "upgraded.py"
    text = cluster.flow_file.read_text()
    changed = text.replace(*SAME_IN_OTHER_WORDS)
    assert changed != text, f"{cluster.flow_file} has nothing to say in other words"
    file.write_text(changed)
    try:
        client = connect(cluster.zookeeper.address, ASK_S, ASK_S, token=cluster.token)
    except UnbrokenError:
        return "ZooKeeper is down, no upgrade", False
    try:
        program = upgrading.propose(client, cluster.flow.name, file)
    except (UnbrokenError, KazooException, KazooTimeoutError) as error:
        return f"no upgrade: {error}", False
    finally:
        client.stop()
        client.close()
    return f"upgrade to generation {program.generation}", True
