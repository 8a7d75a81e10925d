"""Copies of states between simulated nodes: asked for, pinned, and brought over a link by their size."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from unbroken.errors import UnbrokenError, require
from unbroken.node.replicas.transfers import Copied, Copier, PinAnswer, Pinner
from unbroken.protocol.events import PinAsked
from unbroken.protocol.ingress.log import Admission
from unbroken.protocol.instructions import FetchState, PinState
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken.protocol.values.recovery import StoredReplica
from unbroken_lab.sim.disk import ReplicaDisk
from unbroken_lab.sim.files import Interrupted

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess
    from unbroken_lab.sim.world import World

DEADLINE_MS = 60_000.0
"""How long a newcomer waits for its donor."""

LOOK_MS = 200.0
"""How often it looks whether the donor is still there."""

HELD_SHARE = 0.2
"""The part of a held copy that has to be copied again to bring it up to date."""

Done = Callable[[Copied[ReplicaDisk] | BaseException], None]


@dataclass(eq=False)
class Transfer:
    """One copy for ``asker``; it belongs to the process of the donor that pins it."""

    asker: NodeProcess
    replica: ReplicaId
    donor: NodeProcess
    least: int
    held: bool
    began_ms: float
    breaks: int
    abandoned: threading.Event
    done: Done
    ticket: int = 0
    pinned: ReplicaDisk | None = None
    due_ms: float | None = None
    size: int = 0
    over: bool = False


@dataclass
class Copying:
    """The copies that are under way in a world. ``sizes`` says how many bytes one takes, unless by the size of what is
    on disk. Those from nodes that are ``stalled`` do not come to their end."""

    world: World
    under_way: list[Transfer] = field(default_factory=list)
    sizes: Callable[[Transfer, ReplicaDisk], int] | None = None
    stalled: set[NodeId] = field(default_factory=set)
    copied_bytes: int = 0
    copies: int = 0

    def fetch(
        self, asker: NodeProcess, donor: NodeProcess, step: FetchState, abandoned: threading.Event, done: Done
    ) -> None:
        """Ask a donor for a state, and bring it over."""
        mine = [t for t in self.under_way if t.asker is asker and t.replica == step.replica]
        require(all(t.abandoned.is_set() for t in mine), f"{step.replica} is fetched twice", step.replica)
        network, now_ms = self.world.network, self.world.kernel.now_ms
        breaks = network.breaks(asker.name, donor.name)
        transfer = Transfer(asker, step.replica, donor, step.least, step.held, now_ms, breaks, abandoned, done)
        self.under_way.append(transfer)
        asked_ms = 0.0 if PinAsked in network.model.prompt else network.model.latency_ms
        self.world.kernel.after(asked_ms, lambda _: self._ask(transfer, step))
        self.world.kernel.after(LOOK_MS, self._look, transfer)

    def of(self, asker: NodeProcess) -> list[Transfer]:
        """The copies that a node is being given."""
        return [transfer for transfer in self.under_way if transfer.asker is asker]

    def interrupt(self, asker: NodeProcess, replica: ReplicaId) -> None:
        """A copy does not come through."""
        for transfer in self.of(asker):
            if transfer.replica == replica:
                self._fail(transfer, "the transfer failed")

    def _ask(self, transfer: Transfer, step: FetchState) -> None:
        if transfer.donor.alive and not transfer.over:
            answer = partial(self._answered, transfer)
            transfer.ticket = transfer.donor.transfers.ask(
                step.shard, transfer.asker.name, answer, step.least, step.needs
            )

    def _answered(self, transfer: Transfer, found: ReplicaDisk | str) -> None:
        if transfer.over:
            return
        if isinstance(found, str):
            self.world.kernel.after(self.world.network.model.latency_ms, lambda _: self._fail(transfer, found))
            return
        require(
            found.committed >= transfer.least, f"{transfer.replica} is given a state that is too old", transfer.replica
        )
        if self.sizes is not None:
            size = self.sizes(transfer, found)
        else:
            size = int(found.size * (HELD_SHARE if transfer.held else 1.0))
        self.copied_bytes += size
        transfer.pinned, transfer.size = found, size
        costs = self.world.costs
        takes_ms = costs.copy_trips * self.world.network.model.latency_ms + size / costs.copy_bytes_per_ms
        transfer.due_ms = self.world.kernel.now_ms + takes_ms
        self.world.kernel.at(transfer.due_ms, self._look, transfer)

    def _look(self, transfer: Transfer) -> None:
        """Whether a copy has come, or will never come."""
        asker, donor, world = transfer.asker, transfer.donor, self.world
        if transfer.over:
            return
        if not asker.alive or transfer.abandoned.is_set():
            self._end(transfer)
            return
        now_ms = world.kernel.now_ms
        broken = not donor.alive or transfer.breaks != world.network.breaks(asker.name, donor.name)
        waits = donor.frozen or asker.frozen or donor.name in self.stalled
        if broken or now_ms - transfer.began_ms > DEADLINE_MS:
            self._fail(transfer, "the transfer failed")
        elif transfer.due_ms is not None and now_ms >= transfer.due_ms and not waits:
            self._end(transfer)
            self.copies += 1
            transfer.done(Copied(transfer.size, transfer.pinned))
        else:
            world.counts["stalled copies"] += donor.name in self.stalled
            world.kernel.after(LOOK_MS, self._look, transfer)

    def _fail(self, transfer: Transfer, reason: str) -> None:
        if not transfer.over:
            self._end(transfer)
            if transfer.asker.alive:
                transfer.done(UnbrokenError(reason))

    def _end(self, transfer: Transfer) -> None:
        transfer.over = True
        self.under_way.remove(transfer)
        transfer.donor.transfers.forget(transfer.ticket)


class SimulatedPinner(Pinner[ReplicaDisk]):
    """Takes hold of states on the disk of one machine."""

    def __init__(self, process: NodeProcess) -> None:
        self._process = process

    def pin(self, step: PinState, answer: PinAnswer[ReplicaDisk]) -> None:
        try:
            self._process.disk.check_room()
            pinned = self._process.dirs.pin(step)
        except OSError as error:
            answer(f"{self._process.name} cannot pin {step.replica}: {error}")
        else:
            answer(pinned)


class SimulatedCopier(Copier[ReplicaDisk]):
    """Brings states to one process, and puts them on the disk of its machine."""

    def __init__(self, process: NodeProcess) -> None:
        self._process = process

    def copy(self, step: FetchState, abandoned: threading.Event, done: Done) -> None:
        process, world = self._process, self._process.world
        if step.donor == process.name and step.shard == step.replica.shard:
            process.later(world.costs.open_ms, lambda _: done(Copied(0)))
        elif step.donor is None:
            require(
                world.settings.snapshots,
                f"there are no snapshots, and {step.replica} is to come from one",
                step.replica,
            )
            world.snapshots.restore(process, step.replica, done)
        else:
            donor = world.process(step.donor)
            if donor is None or not self._linked(step.donor):
                process.later(LOOK_MS, lambda _: done(UnbrokenError(f"{step.donor} is not reached")))
            else:
                world.copying.fetch(process, donor, step, abandoned, done)

    def complete(self, step: FetchState, place: ReplicaDisk) -> ReplicaDisk:
        self._process.disk.check_room()
        if step.shard == step.replica.shard:
            return place
        return place.begin_from(self._process.world.next_serial())

    def adopt(self, step: FetchState, place: ReplicaDisk) -> None:
        try:
            self._process.dirs.put(step.replica, place)
        except Interrupted:
            self._process.lose_power()
            raise OSError("the power fails") from None

    def discard(self, step: FetchState, place: ReplicaDisk) -> None:
        """Nothing of it is on disk."""

    def settle(self, step: FetchState) -> None:
        """It lasts."""

    def state(self, step: FetchState, admission: Admission | None) -> StoredReplica:
        held = self._process.disk.replicas.get(step.replica)
        if held is None:
            raise FileNotFoundError(f"{step.replica} is not here")
        return held.recover(step.replica)

    def _linked(self, donor: NodeId) -> bool:
        network, name = self._process.world.network, self._process.name
        return network.reaches(name, donor) and network.reaches(donor, name)
