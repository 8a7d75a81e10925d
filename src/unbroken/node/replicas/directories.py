"""The directory of a node: its identity, and one directory per replica that holds all a replica has."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from unbroken.codecs.codec import Codec, Undecodable
from unbroken.data.checksum import Damaged, replace_file, sealed, unsealed
from unbroken.data.durability import force_path, force_tree
from unbroken.data.unit_store import StoredHeaders, UnitStore, owed_bytes, owed_name, stored_headers, unit_name
from unbroken.errors import UnbrokenError
from unbroken.node.ingress.base import IngressBase
from unbroken.node.ingress.log_file import IngressLogFile, log_state
from unbroken.observe.notices import text_of
from unbroken.protocol.ingress.log import Admission
from unbroken.protocol.instructions import NoteOwed
from unbroken.protocol.placement.adoption import LogEnd
from unbroken.protocol.placement.retirement import SetAside
from unbroken.protocol.values.ids import ReplicaId, StreamId, home_of
from unbroken.protocol.values.layout import INGRESS
from unbroken.protocol.values.notices.placement import LayoutForeign
from unbroken.protocol.values.rebuilt_state import Rebuilt
from unbroken.protocol.values.recovery import StoredReplica, StoredUnits
from unbroken.protocol.values.run import NO_RUN, RunIdentity, is_foreign
from unbroken.protocol.values.units import UnitHeader
from unbroken.security.private_files import make_private
from unbroken.spark.checkpoints import committed_batches, offset_at, repair
from unbroken.spark.offsets import cut_from

IDENTITY = "identity.json"

REBUILD = "Let the replica be rebuilt from another one: the node reports it, and the controller places it."

BASE = "base"
"""File of a replica that began with unit ``base + 1`` of its input instead of the first: that number, and the number of
the unit up to which its results are not for anybody."""

STOPPED = "stopped"
"""File of a replica that was stopped: its state is no proof for that of another one."""

AGAIN = "~"
"""Before the count of a replica that was retired more than once."""


@dataclass(frozen=True)
class DiskIdentity:
    """What a disk is known by, the run that it belongs to, and the replicas that have ever had a directory on it."""

    disk: str
    run: RunIdentity = NO_RUN
    begun: frozenset[ReplicaId] = frozenset()


@dataclass(frozen=True)
class _Began:
    """The content of a `BASE` file."""

    base: int
    valid: int


_DISK = Codec(DiskIdentity, "disk-identity", readable=True)
_BEGAN = Codec(_Began, "began", readable=True)


class ReplicaDirs:
    """Where a node keeps its things.

    ``replicas/<replica>/`` holds ``checkpoint/`` or, for the ingress, ``log/``; ``inbox/`` and ``outbox/``. Batch b
    of its checkpoint is unit ``base + b + 1`` of its input (``base`` is 0 unless a file says so). All of it is whole
    whenever it is there: a copy that is under way grows in ``incoming/`` and is renamed. ``pins/`` holds what is kept
    for copies to other nodes, ``staging/`` units that no replica has yet or has any longer, ``scratch/`` what only the
    running process needs. ``retired/<replica>/`` holds a replica that the layout does not place here, until its shard
    is redundant on other nodes.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.replicas = root / "replicas"
        self.retired = root / "retired"
        self.pins = root / "pins"
        self.staging = root / "staging"
        self.store = UnitStore(self.replicas)

    @property
    def dead_letters(self) -> Path:
        """Holds a directory for each flow and run, shared by the nodes that run on one machine: a bad row is written
        once."""
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
            return self._identity().disk
        except FileNotFoundError:
            if self.root.is_dir() and any(self.root.iterdir()):
                raise UnbrokenError(
                    f"{self.root} holds files but is not the directory of a node. Give another one with --dir."
                ) from None
        except Undecodable as error:
            raise Damaged(path, str(error), self._fresh) from error
        self.keep_private()
        self._write_identity(DiskIdentity(uuid.uuid4().hex))
        return self.identity()

    def keep_private(self) -> None:
        """Close the directory to other users, also if it was made by an administrator: it holds rows."""
        make_private(self.root)

    def run(self) -> RunIdentity:
        """The run that this disk belongs to; `NO_RUN` until it has taken a layout."""
        self.identity()
        return self._identity().run

    def belong(self, run: RunIdentity) -> None:
        """Note that this disk belongs to ``run`` from here on.

        Raises
        ------
        UnbrokenError
            If it belongs to another.
        """
        mine = self.run()
        if mine == run:
            return
        if is_foreign(mine.id, run.id):
            raise UnbrokenError(text_of(LayoutForeign(self.root.name, mine.id, run.id)))
        self._write_identity(replace(self._identity(), run=run))

    def begun(self, replica: ReplicaId) -> bool:
        """Whether ``replica`` has ever had a directory here."""
        return replica in self._identity().begun

    def begin(self, replicas: Iterable[ReplicaId]) -> None:
        """Make the directories of replicas that begin with nothing."""
        known, fresh = self._identity(), frozenset(replicas)
        for replica in fresh:
            (self.replicas / str(replica)).mkdir(parents=True, exist_ok=True)
        self._write_identity(replace(known, begun=known.begun | fresh))

    def _identity(self) -> DiskIdentity:
        path = self.root / IDENTITY
        return _DISK.decode(unsealed(path, path.read_bytes(), self._fresh))

    def _write_identity(self, known: DiskIdentity) -> None:
        replace_file(self.root / IDENTITY, sealed(_DISK.encode(known)))

    @property
    def _fresh(self) -> str:
        return f"If nothing in {self.root} is needed, delete the directory: the node then joins as a fresh one."

    # --- replicas -------------------------------------------------------------------------------------

    def present(self) -> list[ReplicaId]:
        return _replicas_in(self.replicas)

    def held(self) -> dict[ReplicaId, int]:
        """The replicas here, and the last unit of its input that is part of the state of each; nothing is changed."""
        reaches = {replica: self._reach(self.replicas / str(replica)) for replica in self.present()}
        return {replica: self.log_end().index if replica.shard == INGRESS else reaches[replica] for replica in reaches}

    def _reach(self, home: Path) -> int:
        checkpoint = home / "checkpoint"
        batches = committed_batches(checkpoint)
        offset = offset_at(checkpoint, batches - 1) if batches else {"cut": _began(home)[0]}
        return int(offset["cut"])

    def log_end(self) -> LogEnd:
        """The last entry of the ingress log here."""
        found = LogEnd()
        for replica in self.present():
            if replica.shard == INGRESS and self.ingress_log(replica).is_dir():
                base = IngressBase.read(self.ingress_log(replica))
                log = IngressLogFile(self.ingress_log(replica))
                ends = [LogEnd(entry.term, entry.index) for entry in log.read_all()]
                found = max([found, *ends])
                if base is not None and base.index > found.index:
                    found = LogEnd(found.term, base.index)
        return found

    def state(self, replica: ReplicaId, admission: Admission | None = None) -> StoredReplica:
        """What a replica can go on from; a fresh copy of the ingress comes with its admission."""
        outbox = stored_headers(self.store.outbox_dir(replica))
        if replica.shard == INGRESS:
            return self._ingress_state(replica, outbox, admission)
        repair(self.checkpoint(replica))
        base, valid = _began(self.replicas / str(replica))
        batches = committed_batches(self.checkpoint(replica))
        offset = offset_at(self.checkpoint(replica), batches - 1) if batches else {"cut": base}
        state = StoredReplica(int(offset["cut"]), valid=valid, taken=cut_from(offset))
        inboxes: dict[StreamId, tuple[UnitHeader, ...]] = {}
        for stream, headers in stored_headers(self.store.inbox_dir(replica)).headers.items():
            if stream.home != stream:
                # What was tentative is of no use to a later process.
                shutil.rmtree(self.store.inbox_dir(replica) / str(stream), ignore_errors=True)
                continue
            taken = state.reach(stream).unit
            inboxes[stream] = tuple(header for header in headers if header.number > taken)
            for header in headers:
                if header.number <= taken:
                    self.store.drop(self.store.inbox_path(replica, stream, header.number))
        stored = self._stored(replica, outbox, max(state.committed, state.valid))
        return replace(state, outboxes=stored, inboxes=inboxes)

    def base(self, replica: ReplicaId) -> int:
        return _began(self.replicas / str(replica))[0]

    def begin_anew(self, replica: ReplicaId, base: int, valid: int, owed: Iterable[NoteOwed]) -> Path:
        """The directory for ``adopt`` of a replica that begins with unit ``base + 1`` of its input.

        Its results count after unit ``valid``; what is ``owed`` to its consumers is noted.
        """
        incoming = self.incoming(replica)
        shutil.rmtree(incoming, ignore_errors=True)
        notes = incoming / self.store.owed_dir(replica).name
        notes.mkdir(parents=True)
        (incoming / BASE).write_bytes(sealed(_BEGAN.encode(_Began(base, valid))))
        for note in owed:
            (notes / owed_name(note.stream)).write_bytes(owed_bytes(note))
        return incoming

    def begin_like(self, replica: ReplicaId, other: ReplicaId) -> None:
        """Make the directory of one that will have the state of another; its inbox may be there already."""
        home = self.replicas / str(replica)
        home.mkdir(parents=True, exist_ok=True)
        note = self.replicas / str(other) / BASE
        if note.exists():
            shutil.copyfile(note, home / BASE)

    def forget_state(self, replica: ReplicaId, base: int, valid: int) -> None:
        """Forget the state of a replica, which begins again at unit ``base + 1`` of its input; its units stay."""
        self._remove(self.checkpoint(replica))
        self.store.write(self.replicas / str(replica) / BASE, sealed(_BEGAN.encode(_Began(base, valid))))

    def completed(self, replica: ReplicaId, keep: bool, forced: bool) -> Path:
        """A copy is complete: the directory for ``adopt``, with all that is in it on disk if it is to be ``forced``.

        With ``keep`` the copy also stays where it has come to, so that a later one has less to bring.
        """
        source = self.incoming(replica)
        if keep:
            source = self.root / f"dropped-{uuid.uuid4().hex}"
            shutil.copytree(self.incoming(replica), source, copy_function=os.link)
        if forced:
            force_tree(source)
        return source

    def adopt(self, replica: ReplicaId, source: Path | None = None) -> None:
        """Make a complete directory that of the replica; ``force_names`` makes that last."""
        target = self.replicas / str(replica)
        self.replicas.mkdir(parents=True, exist_ok=True)
        doomed = self.root / f"dropped-{uuid.uuid4().hex}"
        if target.exists():
            target.rename(doomed)
        (source or self.incoming(replica)).rename(target)
        shutil.rmtree(doomed, ignore_errors=True)

    def force_names(self) -> None:
        """Force to disk which replicas are here."""
        for directory in (self.replicas, self.root):
            force_path(directory)

    def drop(self, replica: ReplicaId) -> None:
        """Remove everything of a replica."""
        self.store.forget(replica)
        self._remove(self.replicas / str(replica))
        shutil.rmtree(self.incoming(replica), ignore_errors=True)

    def retire(self, replica: ReplicaId) -> None:
        """Put a replica aside that is not wanted here: its state may be nowhere else."""
        if home_of(replica.shard.part) != replica.shard.part:
            # A fork: what is tentative is of no use to a later process.
            self.drop(replica)
            return
        self.store.forget(replica)
        target = self.replicas / str(replica)
        if target.exists():
            self.retired.mkdir(parents=True, exist_ok=True)
            # A replica may be begun anew under the same name, and retired once more.
            place = self.retired / str(replica)
            count = itertools.count(2)
            while place.exists():
                place = self.retired / f"{replica}{AGAIN}{next(count)}"
            target.rename(place)
        shutil.rmtree(self.incoming(replica), ignore_errors=True)

    def doubt(self, replica: ReplicaId) -> None:
        """Note that a replica was stopped, for a reason that may lie in its state."""
        with contextlib.suppress(OSError):  # a disk that takes nothing may be the reason
            (self.replicas / str(replica) / STOPPED).touch()

    def set_aside(self) -> list[SetAside]:
        """The replicas that are retired; nothing is changed."""
        places = sorted(self.retired.iterdir()) if self.retired.is_dir() else []
        return [self._set_aside(place) for place in places]

    def _set_aside(self, place: Path) -> SetAside:
        replica = ReplicaId.parse(place.name.partition(AGAIN)[0])
        try:
            whole = _began(place)[0] == 0 and not (place / STOPPED).exists()
            return SetAside(place.name, replica, self._reach(place), whole)
        except (UnbrokenError, OSError, ValueError, LookupError, TypeError):
            return SetAside(place.name, replica, None, False)  # it is kept as it is

    def set_aside_bytes(self) -> int:
        """What retired replicas take on the disk."""
        files = (path for path in self.retired.rglob("*") if path.is_file() and not path.is_symlink())
        return sum(path.stat().st_size for path in files)

    def forget(self, retired: SetAside) -> None:
        """Remove a retired replica, whose state is elsewhere."""
        self._remove(self.retired / retired.name)

    def _remove(self, target: Path) -> None:
        """Remove a directory. Renamed first, so that half a directory is never taken for a whole one."""
        if target.exists():
            doomed = self.root / f"dropped-{uuid.uuid4().hex}"
            target.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def clean(self, wanted: Iterable[ReplicaId]) -> None:
        """Remove what an earlier process left that no process will ask for: pins, unfinished copies. Replicas that are
        not ``wanted`` are retired."""
        for replica in sorted(set(self.present()) - set(wanted)):
            self.retire(replica)
        for leftover in [self.pins, *self.root.glob("dropped-*")]:
            shutil.rmtree(leftover, ignore_errors=True)

    def _ingress_state(self, replica: ReplicaId, outbox: StoredHeaders, admission: Admission | None) -> StoredReplica:
        held = log_state(self.ingress_log(replica), admission)
        return StoredReplica(held.pulse, self._stored(replica, outbox, held.pulse, held.units), log=held)

    def _stored(
        self,
        replica: ReplicaId,
        outbox: StoredHeaders,
        base: int,
        units: Mapping[str, int] = MappingProxyType({}),
    ) -> dict[StreamId, StoredUnits]:
        """The newest units without a hole; older ones that a crash left behind while they were dropped are removed.

        A stream without any begins after ``base``, or after what ``units`` says of its producer. What follows that is
        recomputed, so a damaged unit is removed with those after it; one before it cannot be had here.
        """
        out: dict[StreamId, StoredUnits] = {}
        owed = self.store.owed(replica)
        for stream, found in {**{stream: [] for stream in owed}, **outbox.headers}.items():
            place, headers = self.store.outbox_dir(replica) / str(stream), found
            damaged = min(outbox.damaged.get(stream, ()), default=None)
            if damaged is not None and damaged > units.get(stream.producer.part, base):
                headers = [header for header in found if header.number < damaged]
                for header in found[len(headers) :]:
                    (place / unit_name(header.number)).unlink(missing_ok=True)
            elif damaged is not None and replica.shard != INGRESS:
                raise Damaged(place / unit_name(damaged), "its checksum is wrong", REBUILD)
            run: list[UnitHeader] = []
            for header in reversed(headers):
                if run and header.number != run[-1].number - 1:
                    break
                run.append(header)
            for header in headers[: len(headers) - len(run)]:
                (place / unit_name(header.number)).unlink(missing_ok=True)
            run.reverse()
            begun = units.get(stream.producer.part, base)
            noted = owed.get(stream, (0, Rebuilt()))
            out[stream] = StoredUnits(run[0].number - 1 if run else begun, tuple(run), *noted)
        return out


def _began(home: Path) -> tuple[int, int]:
    """What the note of a replica says that began in the middle."""
    try:
        path = home / BASE
        found = _BEGAN.decode(unsealed(path, path.read_bytes(), REBUILD))
    except FileNotFoundError:
        return 0, 0
    except Undecodable as error:
        raise Damaged(path, str(error), REBUILD) from None
    return found.base, found.valid


def _replicas_in(directory: Path) -> list[ReplicaId]:
    return sorted(ReplicaId.parse(path.name) for path in directory.iterdir()) if directory.is_dir() else []
