"""Durable snapshots: the state of every shard, from time to time, where it survives the loss of all its replicas."""

from __future__ import annotations

import logging
from pathlib import Path

from unbroken.errors import UnbrokenError, reason_of
from unbroken.node.interfaces import LoopAccess, NodeLife
from unbroken.node.replicas.pin_requests import PinRequests
from unbroken.protocol.events import SnapshotTaken
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.notices.replicas import SnapshotFailed
from unbroken.spark.snapshots import SnapshotStore
from unbroken.threads import LastingThread

log = logging.getLogger(__name__)

KEPT = 2
"""Complete snapshots of a shard that are kept: the newest, and one in case it turns out to be damaged."""


class Snapshots:
    """Saves the shards of which this node hosts the oldest replica, and restores one that is lost everywhere.

    A snapshot is what a newcomer would be given: checkpoint and outbox at one version. Producers keep what follows the
    last complete one, so a shard can go on from it whatever happened to its replicas.
    """

    def __init__(
        self, life: NodeLife, loop: LoopAccess, pins: PinRequests, store: SnapshotStore, every_s: float
    ) -> None:
        self._life = life
        self._loop = loop
        self._pins = pins
        self._store = store
        self._every_s = every_s
        self._told = ""
        self._thread = LastingThread(self._work, "snapshots")

    def start(self) -> None:
        self._thread.start()

    def restore(self, replica: ReplicaId, target: Path) -> int:
        """Bring the newest good snapshot of the replica's shard to ``target``; its size."""
        found = self._store.complete(str(replica.shard))
        if not found:
            raise UnbrokenError(f"there is no snapshot of {replica.shard}")
        failure: UnbrokenError | None = None
        for snapshot in found:
            try:
                self._store.restore(snapshot, target)
                return snapshot.size
            except UnbrokenError as error:
                log.warning("snapshot %s of %s cannot be used: %s", snapshot.name, replica.shard, error)
                failure = failure or error
        assert failure is not None
        raise failure

    def _work(self) -> None:
        for shard in self._shards():
            try:
                self._announce(shard)
            except BaseException as error:
                # Then more is kept than necessary, until the next snapshot.
                log.warning("earlier snapshots of %s cannot be found: %s", shard, reason_of(error))
        while not self._life.wait_for_stop(self._every_s):
            for shard in self._shards():
                try:
                    self._save(shard)
                    self._told = ""
                except BaseException as error:
                    reason = reason_of(error)
                    log.warning("no snapshot of %s: %s", shard, reason)
                    if self._told != reason:
                        self._told = reason
                        self._life.tell(SnapshotFailed(shard, reason))

    def _shards(self) -> list[ShardId]:
        """Those that this node is to look after."""
        view = self._loop.view
        return [] if view is None else [s for s in view.layout.eldest_on(self._life.name) if s != INGRESS]

    def _announce(self, shard: ShardId) -> None:
        """Tell what an earlier process has saved, so that no more than necessary is kept for it."""
        latest = self._store.latest(str(shard))
        if latest is not None:
            self._loop.post(SnapshotTaken(shard, latest.version))

    def _save(self, shard: ShardId) -> None:
        pinned = self._pins.pin_here(shard)
        try:
            version = pinned.manifest.version
            latest = self._store.latest(str(shard))
            if latest is None or latest.version < version:
                size = self._store.save(str(shard), version, pinned.directory)
                log.info("snapshot of %s at version %d: %.1f MB", shard, version, size / 1e6)
            self._loop.post(SnapshotTaken(shard, version))
            self._store.prune(str(shard), KEPT)
        finally:
            self._pins.release(pinned.manifest.pin)
