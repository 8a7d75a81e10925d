"""ZooKeeper in memory, below the real client: documents are sealed and transactions made as they are on a server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
)
from kazoo.protocol import serialization as asked
from kazoo.protocol.states import ZnodeStat

from kit.support import TOKEN
from unbroken.coordination.client import SealedClient

SEQUENCE = 2
"""The flag of a create whose name gets a number."""


@dataclass
class Store:
    """The documents, by path; each change that is made together has one number."""

    nodes: dict[str, tuple[bytes, int, int]] = field(default_factory=lambda: {"/": (b"", 0, 0)})
    """Data, version and the number of the change that has made it."""
    changes: Iterator[int] = field(default_factory=lambda: count(1))
    numbers: Iterator[int] = field(default_factory=count)

    def children(self, path: str) -> list[str]:
        below = f"{path.rstrip('/')}/"
        return [name[len(below) :] for name in self.nodes if name.startswith(below) and "/" not in name[len(below) :]]

    def together(self, operations: list[Any]) -> list[Any]:
        """All of them or none, as of a transaction: what came of each."""
        before, change = dict(self.nodes), next(self.changes)
        out: list[Any] = []
        for operation in operations:
            try:
                out.append(self.change(operation, change))
            except KazooException as error:
                self.nodes = before
                return (
                    [RolledBackError() for _ in out] + [error] + [RolledBackError()] * (len(operations) - len(out) - 1)
                )
        return out

    def change(self, operation: Any, number: int) -> Any:
        path = operation.path
        if isinstance(operation, asked.Create | asked.Create2):
            if path.rpartition("/")[0] not in {"", *self.nodes}:
                raise NoNodeError
            path += f"{next(self.numbers):010}" if operation.flags & SEQUENCE else ""
            if path in self.nodes:
                raise NodeExistsError
            self.nodes[path] = (operation.data, 0, number)
            return path
        version = self.nodes[path][1] if path in self.nodes else None
        if version is None:
            raise NoNodeError
        if operation.version not in (-1, version):
            raise BadVersionError
        if isinstance(operation, asked.Delete):
            if self.children(path):
                raise NotEmptyError
            del self.nodes[path]
        elif isinstance(operation, asked.SetData):
            self.nodes[path] = (operation.data, version + 1, self.nodes[path][2])
            return self.stat(path)
        return True

    def stat(self, path: str) -> ZnodeStat:
        if path not in self.nodes:
            raise NoNodeError
        data, version, made = self.nodes[path]
        return ZnodeStat(made, made, 0, 0, version, 0, 0, 0, len(data), len(self.children(path)), 0)


class MemoryClient(SealedClient):
    """A client of a store. ``lose_answer`` makes the next transaction one that is done and whose answer is lost."""

    def __init__(self, store: Store, token: str = TOKEN) -> None:
        super().__init__(token)
        self.store = store
        self.lose_answer = False

    @property
    def client_id(self) -> tuple[int, bytes]:
        return 1, b""

    def _call(self, request: Any, answer: Any) -> None:
        try:
            answer.set(self._answer(request))
        except KazooException as error:
            answer.set_exception(error)

    def _answer(self, request: Any) -> Any:
        store = self.store
        match request:
            case asked.Transaction():
                found = store.together(request.operations)
                if self.lose_answer:
                    self.lose_answer = False
                    raise ConnectionLoss
                return found
            case asked.GetData():
                stat = store.stat(request.path)
                return store.nodes[request.path][0], stat
            case asked.GetChildren():
                store.stat(request.path)
                return store.children(request.path)
            case asked.Exists():
                return store.stat(request.path) if request.path in store.nodes else None
            case asked.Sync():
                return request.path
        return store.change(request, next(store.changes))
