"""Replicas' state on its way between simulated nodes: asked for, pinned, copied over a link by its size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unbroken.errors import require
from unbroken.protocol.events import FetchFailed, PinAsked, StateArrived
from unbroken.protocol.instructions import AbandonFetch, FetchState, PinState, RefusePin
from unbroken.protocol.values.ids import NodeId, ReplicaId
from unbroken_lab.sim.disk import ReplicaDisk

if TYPE_CHECKING:
    from unbroken_lab.sim.machine import NodeProcess
    from unbroken_lab.sim.world import World

DEADLINE_MS = 60_000.0
"""How long a newcomer waits for its donor."""

LOOK_MS = 200.0
"""How often it looks whether the donor is still there."""

HELD_SHARE = 0.2
"""The part of a held copy that has to be copied again to bring it up to date."""


@dataclass(eq=False)
class Transfer:
    """One copy for ``asker``; it belongs to the process of the donor that pinned it."""

    asker: NodeProcess
    replica: ReplicaId
    donor: NodeProcess
    least: int
    held: bool
    ticket: int
    began_ms: float
    breaks: int
    pinned: ReplicaDisk | None = None
    due_ms: float | None = None
    size: int = 0
    over: bool = False


@dataclass
class Transfers:
    """All copies under way. ``sizes`` says how many bytes one takes, unless by the size of what is on disk."""

    world: World
    by_ticket: dict[int, Transfer] = field(default_factory=dict)
    sizes: Callable[[Transfer, ReplicaDisk], int] | None = None
    copied_bytes: int = 0
    copies: int = 0

    def fetch(self, asker: NodeProcess, step: FetchState) -> None:
        if step.donor == asker.name and step.shard == step.replica.shard:
            copy = asker.disk.replicas[step.replica]
            asker.later(self.world.costs.open_ms, lambda _: self._open(asker, step.replica, copy))
            return
        if step.donor is None:
            require(self.world.settings.snapshots, f"there are no snapshots, and {step.replica} is to come from one")
            self.world.snapshots.restore(asker, step.replica)
            return
        mine = [t for t in self.by_ticket.values() if t.asker is asker and t.replica == step.replica and not t.over]
        require(not mine, f"{step.replica} is fetched twice")
        donor = self.world.process(step.donor)
        if donor is None or not self._linked(asker.name, step.donor):
            asker.later(LOOK_MS, lambda _: self._tell_failed(asker, step.replica, step.donor))
            return
        network, ticket = self.world.network, self.world.next_serial()
        breaks = network.breaks(asker.name, step.donor)
        transfer = Transfer(asker, step.replica, donor, step.least, step.held, ticket, self.world.kernel.now_ms, breaks)
        self.by_ticket[ticket] = transfer
        question = PinAsked(step.shard, asker.name, ticket, step.least, step.needs)
        asked_ms = 0.0 if PinAsked in network.model.prompt else network.model.latency_ms
        self.world.kernel.after(asked_ms, lambda _: donor.post(question) if donor.alive else None)
        self.world.kernel.after(LOOK_MS, self._look, transfer)

    def abandon(self, asker: NodeProcess, step: AbandonFetch) -> None:
        for transfer in list(self.by_ticket.values()):
            if transfer.asker is asker and transfer.replica == step.replica:
                self._end(transfer)

    def pin(self, donor: NodeProcess, step: PinState) -> None:
        """The donor takes hold of what it gives."""
        if self.world.snapshots.owns(step.ticket):
            self.world.snapshots.pin(step)
            return
        transfer = self.by_ticket.get(step.ticket)
        if transfer is None or transfer.over:
            return
        pinned = donor.disk.replicas[step.replica].pin(step)
        require(pinned.committed >= transfer.least, f"{step.replica} is pinned too early for {transfer.replica}")
        if self.sizes is not None:
            size = self.sizes(transfer, pinned)
        else:
            size = int(pinned.size * (HELD_SHARE if transfer.held else 1.0))
        self.copied_bytes += size
        transfer.pinned, transfer.size = pinned, size
        costs = self.world.costs
        takes_ms = costs.copy_trips * self.world.network.model.latency_ms + size / costs.copy_bytes_per_ms
        transfer.due_ms = self.world.kernel.now_ms + takes_ms
        self.world.kernel.at(transfer.due_ms, self._look, transfer)

    def refuse(self, step: RefusePin) -> None:
        self.world.snapshots.refuse(step.ticket)
        transfer = self.by_ticket.get(step.ticket)
        if transfer is not None and not transfer.over:
            self.world.kernel.after(self.world.network.model.latency_ms, self._fail, transfer)

    def _look(self, transfer: Transfer) -> None:
        """Whether a copy has come, or will never come."""
        asker, donor, world = transfer.asker, transfer.donor, self.world
        if transfer.over:
            return
        if not asker.alive:
            self._end(transfer)
            return
        now_ms = world.kernel.now_ms
        broken = not donor.alive or transfer.breaks != world.network.breaks(asker.name, donor.name)
        if broken or now_ms - transfer.began_ms > DEADLINE_MS:
            self._fail(transfer)
        elif transfer.due_ms is not None and now_ms >= transfer.due_ms and not donor.frozen and not asker.frozen:
            self._arrive(transfer)
        else:
            world.kernel.after(LOOK_MS, self._look, transfer)

    def _arrive(self, transfer: Transfer) -> None:
        assert transfer.pinned is not None
        self._end(transfer)
        self.copies += 1
        asker, pinned = transfer.asker, transfer.pinned
        asker.hosting.put(transfer.replica, pinned)
        state = pinned.recover(transfer.replica)
        asker.post(StateArrived(transfer.replica, state, transfer.donor.name, transfer.size))

    def _open(self, asker: NodeProcess, replica: ReplicaId, copy: ReplicaDisk) -> None:
        if asker.disk.replicas.get(replica) is copy:
            asker.post(StateArrived(replica, copy.recover(replica), asker.name, 0))

    def _fail(self, transfer: Transfer) -> None:
        if not transfer.over:
            self._end(transfer)
            self._tell_failed(transfer.asker, transfer.replica, transfer.donor.name)

    def _tell_failed(self, asker: NodeProcess, replica: ReplicaId, donor: NodeId | None) -> None:
        if asker.alive:
            asker.post(FetchFailed(replica, donor, "the transfer failed"))

    def _end(self, transfer: Transfer) -> None:
        transfer.over = True
        self.by_ticket.pop(transfer.ticket, None)

    def _linked(self, one: NodeId, other: NodeId) -> bool:
        return self.world.network.reaches(one, other) and self.world.network.reaches(other, one)
