"""Removes the replicas that a node has put aside, when their shards are redundant without them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from unbroken.node.inquiries import ProtocolView
from unbroken.node.interfaces import NodeLife
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.protocol.placement.retirement import Retirement, contained
from unbroken.protocol.values.notices.replicas import ReplicasKeptAside
from unbroken.threads import LastingThread

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Pause between two looks; short against the time for which a shard has to be redundant."""


class Retiring:
    """A thread of its own: removing a large directory takes longer than the loop may wait."""

    def __init__(self, life: NodeLife, dirs: ReplicaDirs, view: Callable[[], ProtocolView | None]) -> None:
        self._life = life
        self._dirs = dirs
        self._view = view
        self._retirement = Retirement(life.name)
        self._told: set[str] = set()
        self._thread = LastingThread(self._work, "retired-replicas")

    def start(self) -> None:
        self._thread.start()

    def look(self, now_s: float) -> None:
        """Remove what is not needed at this moment."""
        view, dirs = self._view(), self._dirs
        retired = dirs.set_aside()
        if view is None:
            return
        replicas = {each.replica for each in retired}
        safe = self._retirement.removable(replicas, view.layout, view.topology, now_s)
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
            size = self._dirs.set_aside_bytes()
            self._life.tell(ReplicasKeptAside(self._life.name, tuple(names), size))
        self._told = set(names)

    def _work(self) -> None:
        while not self._life.wait_for_stop(LOOK_S):
            try:
                self.look(time.monotonic())
            except OSError as error:
                log.warning("what was put aside cannot be removed: %s", error)
            except Exception:
                log.exception("what was put aside cannot be removed")
