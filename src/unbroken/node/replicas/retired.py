"""Removes the replicas that a node has put aside, when their shards are redundant without them."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from unbroken.protocol.placement.retirement import Retirement, contained
from unbroken.threads import LastingThread

if TYPE_CHECKING:
    from unbroken.node.node import Node

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Pause between two looks; short against the time for which a shard has to be redundant."""


class Retiring:
    """A thread of its own: removing a large directory takes longer than the loop may wait."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._retirement = Retirement(node.name)
        self._told: set[str] = set()
        self._thread = LastingThread(self._work, "retired-replicas")

    def start(self) -> None:
        self._thread.start()

    def look(self, now_s: float) -> None:
        """Remove what is not needed at this moment."""
        protocol, dirs = self._node.protocol, self._node.dirs
        retired = dirs.set_aside()
        if protocol is None:
            return
        replicas = {each.replica for each in retired}
        safe = self._retirement.removable(replicas, protocol.layout, protocol.topology, now_s)
        for each in [each for each in retired if each.replica in safe]:
            log.info("%s was put aside and is removed: its shard is redundant on other nodes", each.name)
            dirs.forget(each)
        kept = [each for each in retired if each.replica not in safe]
        for each in contained(kept):
            log.info("%s was put aside and is removed: a later one contains its state", each.name)
            dirs.forget(each)
            kept.remove(each)
        self._tell([each.name for each in kept])

    def _tell(self, names: list[str]) -> None:
        """Report what is kept, and the space it takes, when there is more of it."""
        if set(names) - self._told:
            size = self._node.dirs.set_aside_bytes() / 1e6
            what = ", ".join(names)
            self._node.tell(f"{self._node.name} keeps {what} aside, {size:.1f} MB, until redundancy is restored")
        self._told = set(names)

    def _work(self) -> None:
        while not self._node.wait_for_stop(LOOK_S):
            try:
                self.look(time.monotonic())
            except OSError as error:
                log.warning("what was put aside cannot be removed: %s", error)
            except Exception:
                log.exception("what was put aside cannot be removed")
