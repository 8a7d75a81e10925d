"""The directory of a node: its identity, and one directory per replica that holds all a replica has."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from unbroken.errors import UnbrokenError
from unbroken.ingress.base import IngressBase
from unbroken.ingress.logfile import IngressLogFile
from unbroken.protocol.ids import ReplicaId, StreamId
from unbroken.protocol.ingress import Admission
from unbroken.protocol.layout import INGRESS
from unbroken.protocol.recovery import LogState, ReplicaState, StoredUnits
from unbroken.protocol.units import UnitHeader
from unbroken.spark.checkpoints import committed_batches, offset_at, repair
from unbroken.spark.offsets import cut_from
from unbroken.transport.store import UnitStore, stored_headers, unit_name

IDENTITY = "identity.json"

BASE = "base"
"""File of a replica that began with unit ``base + 1`` of its input instead of the first: that number, and the number of
the unit up to which its results are not for anybody."""


class ReplicaDirs:
    """Where a node keeps its things.

    ``replicas/<replica>/`` holds ``checkpoint/`` or, for the ingress, ``log/``; ``inbox/`` and ``outbox/``. Batch b
    of its checkpoint is unit ``base + b + 1`` of its input (``base`` is 0 unless a file says so). All of it is whole
    whenever it is there: a copy that is under way grows in ``incoming/`` and is renamed. ``pins/`` holds what is kept
    for copies to other nodes, ``scratch/`` what only the running process needs.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.replicas = root / "replicas"
        self.pins = root / "pins"
        self.store = UnitStore(self.replicas)

    @property
    def dead_letters(self) -> Path:
        """Shared by the nodes of a flow that run on one machine: a bad row is written once."""
        return self.root.parent / "dead-letters"

    def checkpoint(self, replica: ReplicaId) -> Path:
        return self.replicas / str(replica) / "checkpoint"

    def ingress_log(self, replica: ReplicaId) -> Path:
        return self.replicas / str(replica) / "log"

    def incoming(self, replica: ReplicaId) -> Path:
        return self.root / "incoming" / str(replica)

    def scratch(self) -> Path:
        """A directory for a process that starts here. What an earlier one left is removed: it may have been killed."""
        place = self.root / "scratch"
        shutil.rmtree(place, ignore_errors=True)
        mine = place / uuid.uuid4().hex[:8]
        mine.mkdir(parents=True)
        return mine

    # --- identity -------------------------------------------------------------------------------------

    def identity(self) -> str:
        """What this disk is known by; made at the first start."""
        path = self.root / IDENTITY
        try:
            return str(json.loads(path.read_text())["disk"])
        except FileNotFoundError:
            if self.root.is_dir() and any(self.root.iterdir()):
                raise UnbrokenError(
                    f"{self.root} holds files but is not the directory of a node. Give another one with --dir."
                ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise UnbrokenError(
                f"{path} is damaged ({error}). If nothing in {self.root} is needed, delete the directory; the node "
                "then joins as a fresh one."
            ) from error
        self.root.mkdir(parents=True, exist_ok=True)
        self._write_identity(uuid.uuid4().hex, [])
        return self.identity()

    def begun(self, replica: ReplicaId) -> bool:
        """Whether ``replica`` has ever had a directory here."""
        return str(replica) in json.loads((self.root / IDENTITY).read_text())["begun"]

    def begin(self, replicas: Iterable[ReplicaId]) -> None:
        """Make the directories of replicas that begin with nothing."""
        known = json.loads((self.root / IDENTITY).read_text())
        names = [str(replica) for replica in replicas]
        for name in names:
            (self.replicas / name).mkdir(parents=True, exist_ok=True)
        self._write_identity(known["disk"], sorted({*known["begun"], *names}))

    def _write_identity(self, disk: str, begun: list[str]) -> None:
        unfinished = self.root / f"{IDENTITY}.tmp"
        with unfinished.open("w") as file:
            json.dump({"disk": disk, "begun": begun}, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.root / IDENTITY)

    # --- replicas -------------------------------------------------------------------------------------

    def present(self) -> list[ReplicaId]:
        if not self.replicas.is_dir():
            return []
        return sorted(ReplicaId.parse(path.name) for path in self.replicas.iterdir())

    def state(self, replica: ReplicaId, admission: Admission | None = None) -> ReplicaState:
        """What a replica can go on from; a fresh copy of the ingress comes with its admission."""
        outbox = stored_headers(self.store.outbox_dir(replica))
        if replica.shard == INGRESS:
            return self._ingress_state(replica, outbox, admission)
        repair(self.checkpoint(replica))
        base, valid = self._began(replica)
        batches = committed_batches(self.checkpoint(replica))
        offset = offset_at(self.checkpoint(replica), batches - 1) if batches else {"cut": base}
        state = ReplicaState(int(offset["cut"]), valid=valid, taken=cut_from(offset))
        inboxes: dict[StreamId, tuple[UnitHeader, ...]] = {}
        for stream, headers in stored_headers(self.store.inbox_dir(replica)).items():
            if stream.home != stream:
                # What was tentative is of no use to a later process.
                shutil.rmtree(self.store.inbox_dir(replica) / str(stream), ignore_errors=True)
                continue
            taken = state.reach(stream).unit
            inboxes[stream] = tuple(header for header in headers if header.number > taken)
            for header in headers:
                if header.number <= taken:
                    self.store.drop(self.store.inbox_path(replica, stream, header.number))
        return replace(state, outboxes=self._stored(replica, outbox, state.committed), inboxes=inboxes)

    def base(self, replica: ReplicaId) -> int:
        return self._began(replica)[0]

    def _began(self, replica: ReplicaId) -> tuple[int, int]:
        try:
            base, valid = (self.replicas / str(replica) / BASE).read_text().split()
        except FileNotFoundError:
            return 0, 0
        return int(base), int(valid)

    def begin_anew(self, replica: ReplicaId, base: int, valid: int) -> None:
        """Make the directory of a replica that begins with nothing at unit ``base + 1`` of its input."""
        self.drop(replica)
        incoming = self.incoming(replica)
        incoming.mkdir(parents=True)
        (incoming / BASE).write_text(f"{base} {valid}")
        self.adopt(replica)

    def begin_like(self, replica: ReplicaId, other: ReplicaId) -> None:
        """Make the directory of one that will have the state of another; its inbox may be there already."""
        home = self.replicas / str(replica)
        home.mkdir(parents=True, exist_ok=True)
        note = self.replicas / str(other) / BASE
        if note.exists():
            shutil.copyfile(note, home / BASE)

    def undo(self, replica: ReplicaId, base: int, valid: int) -> None:
        """Forget the state of a replica, which begins again at unit ``base + 1`` of its input; its units stay."""
        target = self.checkpoint(replica)
        if target.exists():
            doomed = self.root / f"dropped-{uuid.uuid4().hex}"
            target.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
        self.store.write(self.replicas / str(replica) / BASE, f"{base} {valid}".encode())

    def adopt(self, replica: ReplicaId, keep: bool = False) -> None:
        """A copy is complete: it becomes the replica's directory.

        With ``keep`` it also stays where it has come to, so that a later one has less to bring.
        """
        target = self.replicas / str(replica)
        self.replicas.mkdir(parents=True, exist_ok=True)
        source = self.incoming(replica)
        if keep:
            source = self.root / f"dropped-{uuid.uuid4().hex}"
            shutil.copytree(self.incoming(replica), source, copy_function=os.link)
        doomed = self.root / f"dropped-{uuid.uuid4().hex}"
        if target.exists():
            target.rename(doomed)
        source.rename(target)
        shutil.rmtree(doomed, ignore_errors=True)

    def drop(self, replica: ReplicaId) -> None:
        """Remove everything of a replica. Renamed first, so that half a directory is never taken for a whole one."""
        self.store.forget(replica)
        target = self.replicas / str(replica)
        if target.exists():
            doomed = self.root / f"dropped-{uuid.uuid4().hex}"
            target.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
        shutil.rmtree(self.incoming(replica), ignore_errors=True)

    def clean(self, wanted: Iterable[ReplicaId]) -> None:
        """Remove what an earlier process left that nobody will ask for: other replicas, pins, unfinished copies."""
        for replica in set(self.present()) - set(wanted):
            self.drop(replica)
        for leftover in [self.pins, *self.root.glob("dropped-*")]:
            shutil.rmtree(leftover, ignore_errors=True)

    def _ingress_state(
        self, replica: ReplicaId, outbox: dict[StreamId, list[UnitHeader]], admission: Admission | None
    ) -> ReplicaState:
        log = self.ingress_log(replica)
        base = IngressBase.read(log)
        entries = tuple(IngressLogFile(log).read()) if log.is_dir() else ()
        index, pulse, finished = (0, 0, False) if base is None else (base.index, base.pulse, base.finished)
        units = {} if base is None else base.units
        held = LogState(index, entries, pulse, finished, admission, units)
        return ReplicaState(pulse, self._stored(replica, outbox, pulse, units), log=held)

    def _stored(
        self,
        replica: ReplicaId,
        outbox: dict[StreamId, list[UnitHeader]],
        base: int,
        units: Mapping[str, int] = MappingProxyType({}),
    ) -> dict[StreamId, StoredUnits]:
        """The newest units without a hole; older ones that a crash left behind while they were dropped are removed.

        A stream without any begins after ``base``, or after what ``units`` says of its producer.
        """
        out: dict[StreamId, StoredUnits] = {}
        for stream, headers in outbox.items():
            run: list[UnitHeader] = []
            for header in reversed(headers):
                if run and header.number != run[-1].number - 1:
                    break
                run.append(header)
            for header in headers[: len(headers) - len(run)]:
                (self.store.outbox_dir(replica) / str(stream) / unit_name(header.number)).unlink(missing_ok=True)
            run.reverse()
            owed = self.store.owed(replica, stream)
            begun = units.get(stream.producer.part, base)
            out[stream] = StoredUnits(run[0].number - 1 if run else begun, tuple(run), *owed)
        return out
