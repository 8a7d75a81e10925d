"""A node with an ingress service and nothing else."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from kit.support import consumers_of, wait_until
from unbroken.connectors.dead_letters import DeadLetters
from unbroken.node.ingress.feeder import Feeder, open_feeder
from unbroken.node.ingress.log_file import IngressLogFile
from unbroken.node.ingress.service import IngressService
from unbroken.node.ingress.surroundings import IngressClocks, IngressGround
from unbroken.node.ingress.unit_writer import UnitWriter
from unbroken.node.replicas.directories import ReplicaDirs
from unbroken.node.workers import ThreadWorker
from unbroken.protocol.events import Produced, PushArrived, SourcesPolled
from unbroken.protocol.ingress.log import Entry
from unbroken.protocol.instructions import PersistEntry, PollSources
from unbroken.protocol.values.ids import ReplicaId, ShardId
from unbroken.protocol.values.notices import Notice

DEADLINE_S = 20.0
REPLICA = ReplicaId(ShardId("ingress", 0), 0)


@dataclass
class FakeNode:
    """What the ingress needs of its node; a log with one member, which commits at once."""

    flow: Any
    dirs: ReplicaDirs
    name: str = "node-1"
    events: list[Any] = field(default_factory=list)
    story: list[Notice] = field(default_factory=list)
    service: IngressService | None = None
    entries: int = 0

    def __post_init__(self) -> None:
        self.store = self.dirs.store
        self.letters = DeadLetters(self.dirs.dead_letters / "shop-1", tell=self.tell)
        self.layout = SimpleNamespace(pause=None)
        self.view: Any = SimpleNamespace(leading=True, sync=SimpleNamespace(leader="node-1"), layout=self.layout)
        self.members: dict[str, Any] = {}
        self.settings = self.flow.settings
        self.cut = threading.Event()

    def ground(self, clocks: IngressClocks) -> IngressGround:
        units = UnitWriter(consumers_of(self.flow), self.store, partial(self.store.outbox_path, REPLICA))
        return IngressGround(
            partial(IngressLogFile, self.dirs.ingress_log(REPLICA)),
            partial(open_feeder, self.flow, units, self.letters),
            self.letters.tidy,
            self.settings.durability == "sync",
            ThreadWorker("ingress"),
            ThreadWorker("ingress-log"),
            clocks,
        )

    def open(self, clocks: IngressClocks | None = None) -> IngressService:
        """Start an ingress on what the directory holds, and wait until it is open."""
        service = self.service = IngressService(self, REPLICA, self.ground(clocks or IngressClocks()))
        service.start()
        wait_until(lambda: service.feeder is not None, DEADLINE_S, "the ingress is open")
        return service

    @property
    def feeder(self) -> Feeder:
        assert self.service is not None and self.service.feeder is not None
        return self.service.feeder

    def post(self, event: Any) -> None:
        self.events.append(event)
        if isinstance(event, SourcesPolled):
            self.enter(event.body, event.pulse, event.final)
            self.cut.set()
        if isinstance(event, PushArrived):
            self.enter(event.body)

    def enter(self, body: bytes, pulse: int = 0, final: bool = False) -> None:
        assert self.service is not None
        self.entries += 1
        entry = Entry(self.entries, 1, body, pulse, final)
        self.service.persist(PersistEntry(entry))
        self.service.commit(entry)

    def tell(self, notice: Notice) -> None:
        self.story.append(notice)

    def cannot_keep(self, error: OSError) -> None:
        raise AssertionError(error)

    def fail(self, notice: Notice) -> None:
        raise AssertionError(notice)

    def pulse(self, number: int) -> None:
        assert self.service is not None
        self.cut.clear()
        self.service.poll(PollSources(number, 1, 0))
        assert self.cut.wait(DEADLINE_S)

    def made(self, source: str) -> int:
        """The last unit of a source that was given to the protocol."""
        headers = [header for event in self.events if isinstance(event, Produced) for header in event.headers]
        return max((header.number for header in headers if header.stream.producer.part == source), default=0)
