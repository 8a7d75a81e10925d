"""Which connections a server keeps when they are many: those that have proved to belong to the flow.

Connections cost a stranger nothing, and neither does a request. So every connection is a stranger's until a request on
it is admitted, and again when its next request begins. Strangers have a share of the places: when others arrive, those
that are there longest leave, whether they wait for the rest of a header, for a next request, or have a request under
way. However many they are, one that proves itself on arrival gets through. A moment belongs to each, as far as there is
room: its proof may have arrived and not be read yet.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

from unbroken.errors import require

T = TypeVar("T")


MOMENT_S = 0.1
"""How long a connection is left alone when others arrive."""

HARD = 2
"""How many times as many there may be for a moment, and while all have admitted requests under way."""

SHARE = 4
"""Strangers have one in so many of the places once their moment is over: a proof takes a moment, a push lasts."""


class Places(Generic[T]):
    """The connections of a server.

    Invariant: there are at most ``HARD * most``, and at most ``HARD * most_each`` from one address. After one has
    entered, no stranger older than a moment is left beyond one in ``SHARE`` of ``most`` and ``most_each``; after one
    was admitted, none that waits for longer than a moment is left beyond ``most`` and ``most_each``. One with an
    admitted request under way never has to leave for another, and one that waits after such a request never for as long
    as there is a stranger to leave.
    """

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._address: dict[T, str] = {}
        self._from: Counter[str] = Counter()
        self._strangers: dict[T, float] = {}
        """Those without an admitted request, and since when; the one that is there longest first."""
        self._strangers_from: Counter[str] = Counter()
        self._guests: dict[T, float] = {}
        """Those that wait and whose last request was admitted, in the same way."""

    def __len__(self) -> int:
        return len(self._address)

    def make_room(self, address: str, now_s: float) -> list[T]:
        """Those that have to leave for a new connection from an address, and have left with this."""
        leaving: list[T] = []
        ripe_s = now_s - MOMENT_S
        while self._strangers_from[address] >= _share(self._most_each) and self._stranger_leaves(
            address, ripe_s, leaving
        ):
            pass
        while len(self._strangers) >= _share(self._most) and self._stranger_leaves(None, ripe_s, leaving):
            pass
        while self._from[address] >= HARD * self._most_each and (
            self._stranger_leaves(address, now_s, leaving) or self._guest_leaves(address, now_s, leaving)
        ):
            pass
        while len(self) >= HARD * self._most and (
            self._stranger_leaves(None, now_s, leaving) or self._guest_leaves(None, now_s, leaving)
        ):
            pass
        return leaving

    def enter(self, one: T, address: str, now_s: float) -> bool:
        """Take a new connection in, as a stranger; False if all places have admitted requests under way."""
        if self._from[address] >= HARD * self._most_each or len(self) >= HARD * self._most:
            return False
        self._address[one] = address
        self._from[address] += 1
        self._become_stranger(one, now_s)
        return True

    def ask(self, one: T, now_s: float) -> None:
        """A request of this one has begun, which has proved nothing yet."""
        if one in self._address:
            self._stand_up(one)
            self._become_stranger(one, now_s)

    def admit(self, one: T, now_s: float) -> list[T]:
        """The request of this one that is under way is admitted; those that wait too long leave for it."""
        leaving: list[T] = []
        if one in self._address:
            self._stand_up(one)
            address, ripe_s = self._address[one], now_s - MOMENT_S
            while self._admitted_from(address) > self._most_each and self._guest_leaves(address, ripe_s, leaving):
                pass
            while len(self) - len(self._strangers) > self._most and self._guest_leaves(None, ripe_s, leaving):
                pass
        return leaving

    def wait(self, one: T, now_s: float) -> None:
        """No request of this one is under way from now on; a stranger stays one."""
        if one in self._address and one not in self._strangers:
            self._guests.setdefault(one, now_s)

    def leave(self, one: T) -> None:
        if one not in self._address:
            return
        self._stand_up(one)
        address = self._address.pop(one)
        self._from[address] -= 1
        if not self._from[address]:
            del self._from[address]

    def check(self) -> None:
        """Assert the invariant as far as it can be seen from here."""
        require(len(self) <= HARD * self._most, "there are more connections than places")
        most_each = HARD * self._most_each
        require(all(0 < count <= most_each for count in self._from.values()), "one address has too many places")
        require(self._from == Counter(self._address.values()), "connections are counted by address")
        require(self._strangers_from == Counter(map(self._address.get, self._strangers)), "and strangers are, too")
        require(self._strangers.keys() | self._guests.keys() <= self._address.keys(), "one that has left waits")
        require(not self._strangers.keys() & self._guests.keys(), "one that was admitted is a stranger")

    def _admitted_from(self, address: str) -> int:
        return self._from[address] - self._strangers_from[address]

    def _become_stranger(self, one: T, now_s: float) -> None:
        self._strangers[one] = now_s
        self._strangers_from[self._address[one]] += 1

    def _stand_up(self, one: T) -> None:
        """Take one out of the group that it is in."""
        self._guests.pop(one, None)
        if self._strangers.pop(one, None) is not None:
            address = self._address[one]
            self._strangers_from[address] -= 1
            if not self._strangers_from[address]:
                del self._strangers_from[address]

    def _stranger_leaves(self, address: str | None, until_s: float, leaving: list[T]) -> bool:
        return self._leaves(self._strangers, address, until_s, leaving)

    def _guest_leaves(self, address: str | None, until_s: float, leaving: list[T]) -> bool:
        return self._leaves(self._guests, address, until_s, leaving)

    def _leaves(self, group: dict[T, float], address: str | None, until_s: float, leaving: list[T]) -> bool:
        """Have the first of a group leave, from an address or from any; False if none is in it since ``until_s``."""
        for one, since_s in group.items():
            if since_s > until_s:
                break
            if address is None or self._address[one] == address:
                self.leave(one)
                leaving.append(one)
                return True
        return False


def _share(most: int) -> int:
    return max(1, most // SHARE)
