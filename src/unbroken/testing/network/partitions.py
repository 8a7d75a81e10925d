"""What tests may do to a network, whichever way it is made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")

HERE = "here"
"""The place of the test process itself; part of every network."""

Direction = tuple[str, str]
"""From whom, and to whom."""


class Partitions(ABC):
    """Members that have a place each, and links between all of them that are cut and healed while they are used.

    A cut is silent, as that of a real network is: what is sent does not arrive, nothing is refused, and connections
    stay open. After ``heal`` they go on, unless somebody has given them up meanwhile.
    """

    def __init__(self, members: Iterable[str]) -> None:
        self.members = (HERE, *members)
        if len(set(self.members)) < len(self.members):
            raise ValueError(f"members need different names, and none may be called {HERE}: {self.members}")
        self._cuts: set[Direction] = set()

    # --- places ---------------------------------------------------------------------------------------

    @abstractmethod
    def host(self, member: str) -> str:
        """The address that servers of a member have to listen on."""

    @abstractmethod
    def free_port(self, member: str) -> int:
        """A port that nobody has at a member's address."""

    @abstractmethod
    def enter(self, member: str) -> list[str]:
        """What to put before a command so that it runs in a member's place."""

    @abstractmethod
    def within(self, member: str, make: Callable[[], T]) -> T:
        """Call ``make`` in a member's place; sockets that it makes stay there whoever uses them afterwards."""

    @abstractmethod
    def way(self, a: str, b: str, port: int) -> str:
        """HOST:PORT at which ``a`` reaches a port of ``b``; a cut between the two is one of this way."""

    # --- links ----------------------------------------------------------------------------------------

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Let nothing through between two members; with ``one_way`` only what ``a`` sends to ``b`` is lost."""
        self._change(self._cuts | self._directions(a, b, one_way))

    def heal(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Let everything through again between two members, or only what ``a`` sends to ``b``."""
        self._change(self._cuts - self._directions(a, b, one_way))

    def isolate(self, member: str, *, but: Collection[str] = ()) -> None:
        """Cut a member from all others, except those of ``but``."""
        others = [other for other in self.members if other != member and other not in but]
        self._change(self._cuts.union(*(self._directions(member, other, False) for other in others)))

    def heal_all(self) -> None:
        self._change(set())

    def is_cut(self, a: str, b: str) -> bool:
        """Whether what ``a`` sends to ``b`` is lost."""
        return (a, b) in self._cuts

    @abstractmethod
    def close(self) -> None:
        """Remove everything; closing again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _apply(self, added: set[Direction], removed: set[Direction]) -> None:
        """Cut and heal directions; what is sent after this has returned is treated accordingly."""

    def _change(self, wanted: set[Direction]) -> None:
        added, removed = wanted - self._cuts, self._cuts - wanted
        if added or removed:
            self._apply(added, removed)
            self._cuts = wanted

    def _directions(self, a: str, b: str, one_way: bool) -> set[Direction]:
        for member in (a, b):
            self._require(member)
        if a == b:
            raise ValueError(f"{a} cannot be cut from itself")
        return {(a, b)} if one_way else {(a, b), (b, a)}

    def _require(self, member: str) -> None:
        if member not in self.members:
            raise ValueError(f"there is no {member} in this network; members are {', '.join(self.members)}")
