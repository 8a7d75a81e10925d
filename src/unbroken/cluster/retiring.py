"""Removes the replicas that a node has put aside, when their shards are redundant without them."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from unbroken.protocol.retirement import Retirement
from unbroken.threads import LastingThread

if TYPE_CHECKING:
    from unbroken.cluster.node import Node

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Pause between two looks; short against the time for which a shard has to be redundant."""


class Retiring:
    """A thread of its own: removing a large directory takes longer than the loop may wait."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._retirement = Retirement(node.name)
        self._thread = LastingThread(self._work, "retired-replicas")

    def start(self) -> None:
        self._thread.start()

    def look(self, now_s: float) -> None:
        """Remove what is not needed at this moment."""
        protocol, dirs = self._node.protocol, self._node.dirs
        retired = dirs.set_aside()
        if protocol is None or not retired:
            return
        for replica in self._retirement.removable(retired, protocol.layout, protocol.topology, now_s):
            log.info("%s was put aside and is removed: its shard is redundant on other nodes", replica)
            dirs.forget(replica)

    def _work(self) -> None:
        while not self._node.wait_for_stop(LOOK_S):
            try:
                self.look(time.monotonic())
            except OSError as error:
                log.warning("what was put aside cannot be removed: %s", error)
            except Exception:
                log.exception("what was put aside cannot be removed")
