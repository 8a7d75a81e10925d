"""Who may stay when a server's connections are many: those with a request, and of the others the youngest.

Connections cost a stranger nothing. One that waits, for the rest of a header or for a next request, has to leave when
others arrive; so half-open connections, however many, do not keep anyone out who has something to ask. A moment belongs
to each, as far as there is room: what it has to ask may have arrived and not be read yet.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

from unbroken.errors import require

T = TypeVar("T")


MOMENT_S = 0.1
"""How long a connection that waits is left alone when others arrive."""

HARD = 2
"""How many times as many there may be for a moment, and while all have requests under way."""


class Places(Generic[T]):
    """The connections of a server.

    Invariant: there are at most ``HARD * most``, and at most ``HARD * most_each`` from one address; after one has
    entered, none that waits for longer than a moment is left beyond ``most`` and ``most_each``; one with a request
    under way never has to leave for another.
    """

    def __init__(self, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._address: dict[T, str] = {}
        self._from: Counter[str] = Counter()
        self._strangers: dict[T, float] = {}
        """Those that wait and have never asked anything, and since when; the one that has waited longest first."""
        self._guests: dict[T, float] = {}
        """Those that wait and have been answered before, in the same way."""
        self._known: set[T] = set()

    def __len__(self) -> int:
        return len(self._address)

    def make_room(self, address: str, now_s: float) -> list[T]:
        """Those that have to leave for a new connection from an address, and have left with this."""
        leaving: list[T] = []
        for most, most_each, moment_s in (
            (self._most, self._most_each, MOMENT_S),
            (HARD * self._most, HARD * self._most_each, 0.0),
        ):
            while self._from.get(address, 0) >= most_each and self._send_away(address, now_s - moment_s, leaving):
                pass
            while len(self) >= most and self._send_away(None, now_s - moment_s, leaving):
                pass
        return leaving

    def enter(self, one: T, address: str, now_s: float) -> bool:
        """Take a new connection in; False if there is no place for it."""
        if self._from.get(address, 0) >= HARD * self._most_each or len(self) >= HARD * self._most:
            return False
        self._address[one] = address
        self._from[address] += 1
        self._strangers[one] = now_s
        return True

    def ask(self, one: T) -> None:
        """A request of this one is under way."""
        self._strangers.pop(one, None)
        self._guests.pop(one, None)
        if one in self._address:
            self._known.add(one)

    def wait(self, one: T, now_s: float) -> None:
        """No request of this one is under way from now on."""
        if one in self._address and one not in self._strangers:
            (self._guests if one in self._known else self._strangers).setdefault(one, now_s)

    def leave(self, one: T) -> None:
        address = self._address.pop(one, None)
        if address is not None:
            self._from[address] -= 1
            if not self._from[address]:
                del self._from[address]
        self._strangers.pop(one, None)
        self._guests.pop(one, None)
        self._known.discard(one)

    def check(self) -> None:
        """Assert the invariant as far as it can be seen from here."""
        require(len(self) <= HARD * self._most, "there are more connections than places")
        most_each = HARD * self._most_each
        require(all(0 < count <= most_each for count in self._from.values()), "one address has too many places")
        require(self._from.total() == len(self), "connections are counted by address")
        waiting = self._strangers.keys() | self._guests.keys()
        require(waiting <= self._address.keys(), "one that has left waits")
        require(not self._strangers.keys() & self._known, "one that was answered is a stranger")

    def _send_away(self, address: str | None, until_s: float, leaving: list[T]) -> bool:
        """Have the one leave that waits longest, from an address or from any; False if none waits since ``until_s``."""
        for group in (self._strangers, self._guests):
            for one, since_s in group.items():
                if since_s > until_s:
                    break
                if address is None or self._address[one] == address:
                    self.leave(one)
                    leaving.append(one)
                    return True
        return False
